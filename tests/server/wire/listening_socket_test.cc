// SPDX-License-Identifier: Apache-2.0
//
// What --listen takes, and whom a connection is from.
#include "server/wire/listening_socket.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/wire/connection_acceptor.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(ListeningSocketTest, TakesAFreePort) {
  for (const char* address : {"127.0.0.1:0", "ipv4:127.0.0.1:0", "localhost:0", "0.0.0.0:0",
                              "tls:127.0.0.1:0", "mtls:0.0.0.0:0"}) {
    const auto socket = ListeningSocket::Open(address, ListeningSocket::PlainReach::kAnywhere);
    ASSERT_THAT(socket, IsOk()) << address;
    const std::string host(address, std::strlen(address) - 1);
    EXPECT_THAT(socket->address(), StartsWith(host));
    EXPECT_NE(socket->address(), address);
    EXPECT_FALSE(socket->files().empty());
  }
}

TEST(ListeningSocketTest, APathLivesAsLongAsTheSocket) {
  const std::string path = absl::StrCat(testing::TempDir(), "/listening-", getpid());
  {
    const auto socket = ListeningSocket::Open("unix:" + path);
    ASSERT_THAT(socket, IsOk());
    EXPECT_EQ(socket->address(), "unix:" + path);
    EXPECT_EQ(access(path.c_str(), F_OK), 0);
    EXPECT_EQ(ListeningSocket::Open("unix:" + path).status().code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(access(path.c_str(), F_OK), 0);
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(ListeningSocketTest, ANameNeedsNoFile) {
  const std::string address = absl::StrCat("unix-abstract:gemmd-test-", getpid());
  const auto socket = ListeningSocket::Open(address);
  ASSERT_THAT(socket, IsOk());
  EXPECT_EQ(socket->address(), address);
  EXPECT_EQ(ListeningSocket::Open(address).status().code(), absl::StatusCode::kUnavailable);
}

TEST(ListeningSocketTest, PlainTcpIsForThisMachine) {
  for (const char* address :
       {"0.0.0.0:0", "[::]:0", "ipv4:0.0.0.0:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"}) {
    const absl::Status status = ListeningSocket::Open(address).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
    EXPECT_THAT(std::string(status.message()), HasSubstr("--insecure-allow-remote"));
  }
  for (const char* address : {"127.0.0.2:0", "localhost:0", "tls:0.0.0.0:0", "mtls:[::]:0"}) {
    EXPECT_THAT(ListeningSocket::Open(address), IsOk()) << address;
  }
}

TEST(ListeningSocketTest, KnowsWhoIsAtTheOtherEnd) {
  EXPECT_EQ(ConnectionKindOf("127.0.0.1:1"), ConnectionKind::kPlain);
  EXPECT_EQ(ConnectionKindOf("dns:///host:1"), ConnectionKind::kPlain);
  EXPECT_EQ(ConnectionKindOf("unix:/path"), ConnectionKind::kUnix);
  EXPECT_EQ(ConnectionKindOf("unix-abstract:name"), ConnectionKind::kUnix);
  EXPECT_EQ(ConnectionKindOf("tls:ipv4:127.0.0.1:1"), ConnectionKind::kTls);
  EXPECT_EQ(ConnectionKindOf("mtls:[::]:1"), ConnectionKind::kMtls);
}

TEST(ListeningSocketTest, SaysWhatIsWrong) {
  const struct {
    const char* address;
    const char* reason;
  } cases[] = {
      {"127.0.0.1", "want HOST:PORT"},
      {"127.0.0.1:http", "want HOST:PORT"},
      {"127.0.0.1:65536", "want HOST:PORT"},
      {"[::1:0", "both brackets"},
      {"unix:", "want a path"},
      {"tls:127.0.0.1", "want HOST:PORT"},
      {"tls:unix:/path", "without TLS"},
      {"tls:tls:127.0.0.1:0", "cannot listen"},
      {"tls:192.0.2.1:0", "Cannot assign requested address"},
      {"unix:/dev/null/x", "Not a directory"},
  };
  for (const auto& bad : cases) {
    const absl::Status status = ListeningSocket::Open(bad.address).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.address));
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.reason));
  }
}

std::string PeerAt(const char* text) {
  sockaddr_storage storage = {};
  sockaddr_in v4 = {};
  sockaddr_in6 v6 = {};
  v4.sin_family = AF_INET;
  v6.sin6_family = AF_INET6;
  v4.sin_port = v6.sin6_port = htons(4711);
  if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
    std::memcpy(&storage, &v4, sizeof(v4));
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
    std::memcpy(&storage, &v6, sizeof(v6));
  }
  return PeerOf(-1, storage);
}

TEST(PeerTest, IsAnAddressOrANetwork) {
  EXPECT_EQ(PeerAt("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(PeerAt("::ffff:10.1.2.3"), "10.1.2.3");
  EXPECT_EQ(PeerAt("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(PeerAt("2001:db8:1:2:ffff::1"), PeerAt("2001:db8:1:2::"));
  EXPECT_NE(PeerAt("2001:db8:1:3::"), PeerAt("2001:db8:1:2::"));
}

TEST(PeerTest, IsTheUserOfAUnixSocket) {
  int pair[2] = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  sockaddr_storage storage = {};
  storage.ss_family = AF_UNIX;
  EXPECT_EQ(PeerOf(pair[0], storage), absl::StrCat("user ", getuid()));
  close(pair[0]);
  close(pair[1]);
}

}  // namespace
}  // namespace gemmd
