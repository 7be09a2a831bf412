// SPDX-License-Identifier: Apache-2.0
//
// Which connections are open, according to the kernel.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/system/files.h"
#include "server/system/sockets.h"
#include "server/wire/connection_acceptor.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/scratch_folder.h"

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

// New connections by a clock that stands still, each closed as soon as it was taken or refused.
class ConnectionRateTest : public testing::Test {
 protected:
  void Start(const std::string& address) {
    std::vector<ListeningSocket> sockets;
    sockets.push_back(*ListeningSocket::Open(address));
    address_ = sockets.front().address();
    const auto take = [](ConnectionKind /*kind*/, int descriptor) { FileDescriptor{descriptor}; };
    acceptor_ = *ConnectionAcceptor::Start(std::move(sockets), {.all = 1000, .of_peer = 1000},
                                           absl::Seconds(10), take, clock_);
  }

  // Connects from an address and waits for the end of the connection.
  void Connect(const char* from) {
    const FileDescriptor peer(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in own = {};
    own.sin_family = AF_INET;
    ASSERT_EQ(inet_pton(AF_INET, from, &own.sin_addr), 1);
    ASSERT_EQ(bind(peer.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
    sockaddr_in to = own;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string port = address_.substr(address_.rfind(':') + 1);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
    ASSERT_EQ(connect(peer.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    AwaitEnd(peer.get());
  }
  void ConnectToPath() {
    const FileDescriptor peer(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un to = {};
    to.sun_family = AF_UNIX;
    address_.copy(to.sun_path, sizeof(to.sun_path) - 1, std::strlen("unix:"));
    ASSERT_EQ(connect(peer.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    AwaitEnd(peer.get());
  }

  ConnectionCounts Counts() { return acceptor_->counts(); }

  FakeClock clock_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;

 private:
  static void AwaitEnd(int peer) {
    char byte = 0;
    ASSERT_EQ(recv(peer, &byte, 1, 0), 0);
  }

  std::string address_;
};

constexpr int64_t kPriceNs = 1'000'000'000 / ConnectionAcceptor::kMaxAccepts;

TEST_F(ConnectionRateTest, APeerBeginsAThousandAtOnceAndInEachSecond) {
  Start("127.0.0.1:0");
  for (int i = 0; i < ConnectionAcceptor::kMaxAccepts; ++i) Connect("127.77.0.1");
  EXPECT_EQ(Counts().refused_for_rate, 0);
  Connect("127.77.0.1");
  EXPECT_EQ(Counts().refused_for_rate, 1);
  EXPECT_EQ(Counts().accepted, ConnectionAcceptor::kMaxAccepts);
  Connect("127.77.0.2");
  EXPECT_EQ(Counts().accepted, ConnectionAcceptor::kMaxAccepts + 1);
  clock_.Advance(2 * kPriceNs);
  for (int i = 0; i < 3; ++i) Connect("127.77.0.1");
  EXPECT_EQ(Counts().accepted, ConnectionAcceptor::kMaxAccepts + 3);
  EXPECT_EQ(Counts().refused_for_rate, 2);
}

TEST_F(ConnectionRateTest, AUserOfAUnixSocketIsOnePeer) {
  const ScratchFolder folder;
  Start("unix:" + folder.Path("socket"));
  for (int i = 0; i < ConnectionAcceptor::kMaxAccepts + 1; ++i) ConnectToPath();
  EXPECT_EQ(Counts().accepted, ConnectionAcceptor::kMaxAccepts);
  EXPECT_EQ(Counts().refused_for_rate, 1);
}

}  // namespace
}  // namespace gemmd
