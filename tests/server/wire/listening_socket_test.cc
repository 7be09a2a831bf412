// SPDX-License-Identifier: Apache-2.0
//
// The addresses that --listen accepts, and the peer of a connection.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/system/files.h"
#include "server/system/sockets.h"
#include "server/wire/connection_acceptor.h"
#include "server/wire/transport.h"
#include "tests/testing/scratch_folder.h"
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

// A socket bound to a path.
FileDescriptor BoundTo(const std::string& path, int type) {
  FileDescriptor made(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  EXPECT_EQ(bind(made.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  return made;
}

ino_t InodeOf(const std::string& path) {
  struct stat status = {};
  return lstat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

TEST(ListeningSocketTest, TakesTheSocketOfAProcessThatHasGone) {
  const ScratchFolder folder;
  const std::string path = folder.Path("socket");
  BoundTo(path, SOCK_STREAM);
  EXPECT_THAT(ListeningSocket::Open("unix:" + path), IsOk());
  EXPECT_EQ(InodeOf(path), 0U);
}

// Sockets of other types, and one whose process does not accept.
TEST(ListeningSocketTest, LeavesTheSocketsOfOthers) {
  const ScratchFolder folder;
  for (const int type : {SOCK_DGRAM, SOCK_SEQPACKET, SOCK_STREAM}) {
    const std::string path = folder.Path(absl::StrCat("socket", type));
    const FileDescriptor theirs = BoundTo(path, type);
    EXPECT_EQ(listen(theirs.get(), 0) == 0, type != SOCK_DGRAM);
    std::vector<FileDescriptor> waiting;
    if (type == SOCK_STREAM) {
      sockaddr_un name = {};
      name.sun_family = AF_UNIX;
      path.copy(name.sun_path, sizeof(name.sun_path) - 1);
      do {
        waiting.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      } while (connect(waiting.back().get(), reinterpret_cast<const sockaddr*>(&name),
                       sizeof(name)) == 0);
      ASSERT_EQ(errno, EAGAIN);
    }
    const ino_t inode = InodeOf(path);
    EXPECT_THAT(ListeningSocket::Open("unix:" + path).status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("another process does")))
        << type;
    EXPECT_EQ(InodeOf(path), inode);
  }
}

TEST(ListeningSocketTest, LeavesWhatALinkLeadsTo) {
  const ScratchFolder folder;
  const std::string path = folder.Path("socket");
  const std::string link = folder.Path("link");
  BoundTo(path, SOCK_STREAM);
  ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
  const ino_t inodes[] = {InodeOf(path), InodeOf(link)};
  EXPECT_THAT(ListeningSocket::Open("unix:" + link).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("in use")));
  EXPECT_EQ(InodeOf(path), inodes[0]);
  EXPECT_EQ(InodeOf(link), inodes[1]);
}

TEST(ListeningSocketTest, LeavesWhatOthersPutInItsPlace) {
  const ScratchFolder folder;
  const std::string path = folder.Path("socket");
  {
    const auto ours = ListeningSocket::Open("unix:" + path);
    ASSERT_THAT(ours, IsOk());
    // Moved, so that its inode is not reused.
    ASSERT_EQ(rename(path.c_str(), folder.Path("moved").c_str()), 0);
    BoundTo(path, SOCK_DGRAM);
  }
  EXPECT_NE(InodeOf(path), 0U);
}

struct stat StatusOf(const std::string& path) {
  struct stat status = {};
  EXPECT_EQ(lstat(path.c_str(), &status), 0);
  return status;
}

// Whatever the umask is: it neither widens nor narrows the access.
TEST(ListeningSocketTest, AFileIsOpenToThoseWhoAreNamedAlone) {
  const ScratchFolder folder;
  const std::string path = folder.Path("socket");
  const gid_t own = getegid();
  const struct {
    SocketAccess access;
    mode_t mode;
  } cases[] = {{{}, 0600},
               {{.group = own}, 0660},
               {{.mode = 0666}, 0666},
               {{.mode = 0622, .group = own}, 0622}};
  constexpr auto kOpen = ListeningSocket::PlainReach::kLoopback;
  for (const mode_t mask : {0000, 0077, 0777}) {
    const mode_t before = umask(mask);
    for (const auto& [access, mode] : cases) {
      const auto socket = ListeningSocket::Open("unix:" + path, kOpen, access);
      ASSERT_THAT(socket, IsOk());
      EXPECT_EQ(StatusOf(path).st_mode & 0777, mode) << mask;
      EXPECT_EQ(StatusOf(path).st_gid, own);
    }
    umask(before);
  }
}

// From its creation on, before access is given to others.
TEST(ListeningSocketTest, AFileBeginsAsItsOwnersAlone) {
  const ScratchFolder folder;
  const std::string path = folder.Path("socket");
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  const mode_t before = umask(0);
  const FileDescriptor made = ListenOn(reinterpret_cast<const sockaddr*>(&name), sizeof(name));
  umask(before);
  ASSERT_TRUE(made.is_open());
  EXPECT_EQ(StatusOf(path).st_mode & 0777, 0600u);
}

TEST(OperatorTest, IsRootTheDaemonsUserOrAMemberOfTheGroup) {
  EXPECT_TRUE(IsOperator(0, {}, 990, {}));
  EXPECT_TRUE(IsOperator(990, {}, 990, {}));
  EXPECT_FALSE(IsOperator(1000, {}, 990, {}));
  EXPECT_FALSE(IsOperator(1000, {0, 990}, 990, {})) << "no group, no members";
  EXPECT_TRUE(IsOperator(1000, {100, 27}, 990, 27));
  EXPECT_FALSE(IsOperator(1000, {100, 28}, 990, 27));
  EXPECT_FALSE(IsOperator(27, {27 + 1}, 990, 27)) << "a user is no group";
}

TEST(OperatorTest, IsKnownByTheOtherEndOfASocket) {
  int pair[2] = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const ConnectionUser user = UserOf(pair[0], std::nullopt);
  EXPECT_EQ(user.name, absl::StrCat("uid:", getuid()));
  EXPECT_TRUE(user.is_operator);
  close(pair[0]);
  close(pair[1]);
  EXPECT_FALSE(UserOf(-1, std::nullopt).is_operator);
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
      {"127.0.0.1:+1", "want HOST:PORT"},
      {"127.0.0.1: 1", "want HOST:PORT"},
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
