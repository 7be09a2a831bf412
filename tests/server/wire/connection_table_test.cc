// SPDX-License-Identifier: Apache-2.0
//
// Which connections are open, according to the kernel.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "server/system/files.h"
#include "server/wire/connection_acceptor.h"
#include "tests/testing/fake_clock.h"

namespace gemmd {
namespace {

using Verdict = ConnectionTable::Verdict;

constexpr int64_t kPauseNs = 10'000'000;  // Between two sweeps.

class ConnectionTableTest : public testing::Test {
 protected:
  // A connection of the peer, which the test closes.
  Verdict Add(const char* peer) {
    FileDescriptor made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_TRUE(made.is_open());
    const Verdict verdict = table_.Admit(made.get(), peer);
    if (verdict == Verdict::kAdmitted) open_.push_back(std::move(made));
    return verdict;
  }
  void CloseLast() { open_.pop_back(); }

  FakeClock clock_;
  ConnectionTable table_{{.all = 4, .of_peer = 2}, clock_};
  std::vector<FileDescriptor> open_;
};

TEST_F(ConnectionTableTest, BoundsAllAndThoseOfOnePeer) {
  EXPECT_EQ(Add("a"), Verdict::kAdmitted);
  EXPECT_EQ(Add("a"), Verdict::kAdmitted);
  EXPECT_EQ(Add("a"), Verdict::kTooManyOfPeer);
  EXPECT_EQ(Add("b"), Verdict::kAdmitted);
  EXPECT_EQ(Add("c"), Verdict::kAdmitted);
  EXPECT_EQ(Add("d"), Verdict::kTooMany);
  clock_.Advance(kPauseNs);
  EXPECT_EQ(table_.CountOpen(), 4);
}

TEST_F(ConnectionTableTest, AClosedConnectionMakesRoom) {
  for (const char* peer : {"a", "b", "c", "d"}) EXPECT_EQ(Add(peer), Verdict::kAdmitted);
  EXPECT_EQ(Add("e"), Verdict::kTooMany);
  CloseLast();
  clock_.Advance(kPauseNs);
  EXPECT_EQ(Add("e"), Verdict::kAdmitted);
  EXPECT_EQ(Add("f"), Verdict::kTooMany);
}

TEST_F(ConnectionTableTest, ANumberThatIsUsedAgainIsAnotherConnection) {
  EXPECT_EQ(Add("a"), Verdict::kAdmitted);
  EXPECT_EQ(Add("a"), Verdict::kAdmitted);
  const int number = open_.back().get();
  CloseLast();
  // Another file of the daemon has the number now.
  const FileDescriptor other(dup(open_.front().get()));
  ASSERT_EQ(other.get(), number);
  EXPECT_EQ(table_.CountOpen(), 1);
  // A connection of another peer replaces it in the table.
  const Verdict verdict = table_.Admit(other.get(), "b");
  EXPECT_EQ(verdict, Verdict::kAdmitted);
  clock_.Advance(kPauseNs);
  EXPECT_EQ(table_.CountOpen(), 2);
}

TEST_F(ConnectionTableTest, LooksAtAllFilesOnlyNowAndThen) {
  EXPECT_EQ(Add("a"), Verdict::kAdmitted);
  EXPECT_EQ(table_.CountOpen(), 1);
  CloseLast();
  EXPECT_EQ(table_.CountOpen(), 1);
  clock_.Advance(kPauseNs);
  EXPECT_EQ(table_.CountOpen(), 0);
}

TEST(GrpcNameTest, IsThatOfGrpcOrNone) {
  const auto name_of = [](const char* text) {
    sockaddr_storage address = {};
    sockaddr_in6 v6 = {};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(4000);
    EXPECT_EQ(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
    std::memcpy(&address, &v6, sizeof(v6));
    return GrpcNameOf(address);
  };
  EXPECT_EQ(name_of("::1"), "ipv6:%5B::1%5D:4000");
  EXPECT_EQ(name_of("::ffff:10.1.2.3"), "ipv4:10.1.2.3:4000");
  sockaddr_storage unix_address = {};
  unix_address.ss_family = AF_UNIX;
  EXPECT_EQ(GrpcNameOf(unix_address), "");
}

}  // namespace
}  // namespace gemmd
