// SPDX-License-Identifier: Apache-2.0
#include "server/wire/listening_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "kernels/option/decimal.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/system/socket_address.h"
#include "server/wire/transport.h"

namespace gemmd {
namespace {

struct HostAndPort {
  std::string host;
  int port = 0;
};

absl::Status CannotListen(const std::string& address, std::string_view reason) {
  return absl::UnavailableError(Concat("listen: cannot listen on ", address, ": ", reason));
}

absl::Status NotLoopback(const std::string& address) {
  return absl::FailedPreconditionError(GotWant(
      "listen", address,
      "a loopback address, unix:PATH, tls:HOST:PORT or mtls:HOST:PORT: whoever reaches a plain "
      "address may use and watch the daemon; --insecure-allow-remote allows it"));
}

std::string LastError() { return std::error_code(errno, std::generic_category()).message(); }

absl::string_view WithoutKind(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, "tls:")) absl::ConsumePrefix(&address, "mtls:");
  return address;
}

absl::StatusOr<HostAndPort> ParseHostAndPort(const std::string& address) {
  absl::string_view rest = WithoutKind(address);
  if (absl::ConsumePrefix(&rest, "dns:")) absl::ConsumePrefix(&rest, "///");
  if (!absl::ConsumePrefix(&rest, "ipv4:")) absl::ConsumePrefix(&rest, "ipv6:");
  const size_t colon = rest.rfind(':');
  HostAndPort parsed;
  const absl::string_view digits = colon == rest.npos ? "" : rest.substr(colon + 1);
  const std::optional<uint16_t> port =
      option::ParseDecimal<uint16_t>({digits.data(), digits.size()});
  if (!port || colon == 0) {
    return absl::InvalidArgumentError(GotWant(
        "listen", address, "HOST:PORT, [IPV6]:PORT, tls:HOST:PORT, mtls:HOST:PORT or unix:PATH"));
  }
  absl::string_view host = rest.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) {
    return absl::InvalidArgumentError(GotWant("listen", address, "[IPV6]:PORT with both brackets"));
  }
  parsed.host = std::string(host);
  parsed.port = *port;
  return parsed;
}

// The address of a wildcard of IPv4, in IPv6, which takes both.
bool IsWildcard(const addrinfo& info) {
  if (info.ai_family != AF_INET) return false;
  sockaddr_in v4 = {};
  std::memcpy(&v4, info.ai_addr, sizeof(v4));
  return v4.sin_addr.s_addr == htonl(INADDR_ANY);
}

void SetPort(sockaddr_storage& storage, int port) {
  // The port lies at the same place in addresses of IPv4 and of IPv6.
  sockaddr_in v4 = {};
  std::memcpy(&v4, &storage, sizeof(v4));
  v4.sin_port = htons(static_cast<uint16_t>(port));
  std::memcpy(&storage, &v4, sizeof(v4));
}

FileDescriptor ListenOnPort(const addrinfo& info, int port) {
  sockaddr_storage storage = {};
  if (IsWildcard(info)) {
    sockaddr_in6 both = {};
    both.sin6_family = AF_INET6;
    both.sin6_port = htons(static_cast<uint16_t>(port));
    FileDescriptor made = ListenOn(reinterpret_cast<const sockaddr*>(&both), sizeof(both));
    // A host without IPv6 takes what was asked for.
    if (made.is_open() || errno == EADDRINUSE) return made;
  }
  std::memcpy(&storage, info.ai_addr, info.ai_addrlen);
  SetPort(storage, port);
  return ListenOn(reinterpret_cast<const sockaddr*>(&storage), info.ai_addrlen);
}

absl::StatusOr<std::vector<FileDescriptor>> ListenOnHost(const std::string& address,
                                                         const HostAndPort& where,
                                                         ListeningSocket::PlainReach reach) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(where.host.c_str(), nullptr, &hints, &found);
  if (error != 0) return CannotListen(address, gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  const bool must_be_loopback = ConnectionKindOf(address) == ConnectionKind::kPlain &&
                                reach != ListeningSocket::PlainReach::kAnywhere;
  for (const addrinfo* info = found; must_be_loopback && info != nullptr; info = info->ai_next) {
    if (!IsLoopback(info->ai_addr)) return NotLoopback(address);
  }
  std::vector<FileDescriptor> files;
  std::string reason;
  int port = where.port;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    FileDescriptor made = ListenOnPort(*info, port);
    if (!made.is_open()) {
      reason = LastError();
      continue;
    }
    port = PortOf(made.get());
    files.push_back(std::move(made));
  }
  if (files.empty()) return CannotListen(address, reason);
  return files;
}

// Which file a path names now, as device and inode.
ListeningSocket::Place PlaceOf(const std::string& path) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

// `path` begins with a zero byte for a name that is no file.
absl::StatusOr<std::vector<FileDescriptor>> ListenOnPath(const std::string& address,
                                                         std::string_view path) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(
        GotWant("listen", address, Concat("a path of 1 to ", sizeof(name.sun_path) - 1, " bytes")));
  }
  path.copy(name.sun_path, path.size());
  struct stat status = {};
  // Not what a link leads to: that is somebody else's.
  if (path.front() != '\0' && lstat(name.sun_path, &status) == 0 && S_ISSOCK(status.st_mode)) {
    unlink(name.sun_path);  // CheckAddress saw that nobody listens there.
  }
  const bool is_abstract = path.front() == '\0';
  const size_t bytes = is_abstract ? offsetof(sockaddr_un, sun_path) + path.size() : sizeof(name);
  FileDescriptor made =
      ListenOn(reinterpret_cast<const sockaddr*>(&name), static_cast<socklen_t>(bytes));
  if (!made.is_open()) return CannotListen(address, LastError());
  std::vector<FileDescriptor> files;
  files.push_back(std::move(made));
  return files;
}

}  // namespace

ConnectionKind ConnectionKindOf(absl::string_view address) {
  if (absl::StartsWith(address, "tls:")) return ConnectionKind::kTls;
  if (absl::StartsWith(address, "mtls:")) return ConnectionKind::kMtls;
  const bool is_unix =
      absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
  return is_unix ? ConnectionKind::kUnix : ConnectionKind::kPlain;
}

absl::StatusOr<ListeningSocket> ListeningSocket::Open(const std::string& address,
                                                      PlainReach reach) {
  RETURN_IF_ERROR(CheckAddress(address));
  if (ConnectionKindOf(WithoutKind(address)) == ConnectionKind::kUnix &&
      ConnectionKindOf(address) != ConnectionKind::kUnix) {
    return absl::InvalidArgumentError(
        GotWant("listen", address, "unix:PATH without TLS: its bytes never leave the machine"));
  }
  ListeningSocket made;
  absl::string_view rest = address;
  if (absl::ConsumePrefix(&rest, "unix-abstract:")) {
    std::string name(1, '\0');
    name.append(rest.data(), rest.size());
    ASSIGN_OR_RETURN(made.files_, ListenOnPath(address, name));
    made.address_ = address;
  } else if (absl::ConsumePrefix(&rest, "unix:")) {
    absl::ConsumePrefix(&rest, "//");  // unix:///absolute/path
    ASSIGN_OR_RETURN(made.files_, ListenOnPath(address, {rest.data(), rest.size()}));
    made.address_ = address;
    made.path_ = std::string(rest);
    made.place_ = PlaceOf(made.path_);
  } else {
    ASSIGN_OR_RETURN(const HostAndPort where, ParseHostAndPort(address));
    ASSIGN_OR_RETURN(made.files_, ListenOnHost(address, where, reach));
    made.address_ = WithPort(address, PortOf(made.files_.front().get()));
  }
  return made;
}

ListeningSocket::~ListeningSocket() {
  // Somebody else may have put another socket there.
  if (!path_.empty() && !files_.empty() && PlaceOf(path_) == place_) unlink(path_.c_str());
}

}  // namespace gemmd
