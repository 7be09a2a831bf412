// SPDX-License-Identifier: Apache-2.0
#include "server/system/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gemmd {

namespace {

bool IsLoopback(const in_addr& address) {
  constexpr int kLoopbackNet = 127;
  constexpr int kNetShift = 24;
  return ntohl(address.s_addr) >> kNetShift == kLoopbackNet;
}

// The offset of an IPv4 address inside an IPv6 address.
constexpr size_t kMappedAt = 12;

bool IsLoopback(const in6_addr& address) {
  if (!IN6_IS_ADDR_V4MAPPED(&address)) return IN6_IS_ADDR_LOOPBACK(&address);
  in_addr v4 = {};
  std::memcpy(&v4, address.s6_addr + kMappedAt, sizeof(v4));
  return IsLoopback(v4);
}

}  // namespace

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in v4 = {};
    std::memcpy(&v4, address, sizeof(v4));
    return IsLoopback(v4.sin_addr);
  }
  if (address->sa_family != AF_INET6) return false;
  sockaddr_in6 v6 = {};
  std::memcpy(&v6, address, sizeof(v6));
  return IsLoopback(v6.sin6_addr);
}

namespace {

std::string TextOf(int family, const void* address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const char* const written =
      inet_ntop(family, address, text.data(), static_cast<socklen_t>(text.size()));
  return written == nullptr ? "" : written;
}

}  // namespace

std::string PeerOf(int descriptor, const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in v4 = {};
    std::memcpy(&v4, &address, sizeof(v4));
    return TextOf(AF_INET, &v4.sin_addr);
  }
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 v6 = {};
    std::memcpy(&v6, &address, sizeof(v6));
    constexpr size_t kHost = 8;
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      return TextOf(AF_INET, v6.sin6_addr.s6_addr + kMappedAt);
    }
    std::memset(v6.sin6_addr.s6_addr + kHost, 0, kHost);
    return absl::StrCat(TextOf(AF_INET6, &v6.sin6_addr), "/64");
  }
  ucred user = {};
  socklen_t bytes = sizeof(user);
  getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &user, &bytes);
  return absl::StrCat("user ", user.uid);
}

std::string GrpcNameOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in v4 = {};
    std::memcpy(&v4, &address, sizeof(v4));
    return absl::StrCat("ipv4:", TextOf(AF_INET, &v4.sin_addr), ":", ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  sockaddr_in6 v6 = {};
  std::memcpy(&v6, &address, sizeof(v6));
  const int port = ntohs(v6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    return absl::StrCat("ipv4:", TextOf(AF_INET, v6.sin6_addr.s6_addr + kMappedAt), ":", port);
  }
  // gRPC percent-encodes the brackets, as in URIs. It also adds an address's scope, so a name with
  // a scope never matches this one.
  return absl::StrCat("ipv6:%5B", TextOf(AF_INET6, &v6.sin6_addr), "%5D:", port);
}

namespace {

// The length of the part of an IPv6 address that stands for its first four groups.
size_t NetworkLength(std::string_view address) {
  constexpr size_t kGroups = 8;
  constexpr size_t kOfNetwork = 4;
  const auto groups_in = [](std::string_view text) -> size_t {
    return text.empty() ? 0 : 1 + static_cast<size_t>(std::count(text.begin(), text.end(), ':'));
  };
  const auto end_of_groups = [](std::string_view text, size_t count) {
    size_t end = text.find(':');
    for (; count > 1 && end != std::string_view::npos; --count) end = text.find(':', end + 1);
    return std::min(end, text.size());
  };
  const size_t zeros_at = address.find("::");
  const size_t before = groups_in(address.substr(0, zeros_at));
  if (zeros_at == std::string_view::npos || before >= kOfNetwork) {
    return end_of_groups(address, kOfNetwork);
  }
  const size_t after_at = zeros_at + 2;
  const std::string_view after = address.substr(after_at);
  const size_t abbreviated = kGroups - std::min(kGroups, before + groups_in(after));
  if (before + abbreviated >= kOfNetwork) return after_at;
  return after_at + end_of_groups(after, kOfNetwork - before - abbreviated);
}

}  // namespace

std::string_view HostOf(std::string_view peer) {
  constexpr std::string_view kUnix = "unix:";
  if (peer == kUnix) return "unix";
  if (peer.starts_with(kUnix)) return peer.substr(kUnix.size());
  const std::string_view host = peer.substr(0, peer.rfind(':'));
  for (const auto& [begin, end] :
       {std::pair<std::string_view, std::string_view>{"ipv6:%5B", "%5D"}, {"ipv6:[", "]"}}) {
    if (!host.starts_with(begin)) continue;
    const std::string_view address = host.substr(begin.size(), host.find(end) - begin.size());
    return host.substr(0, begin.size() + NetworkLength(address));
  }
  return host;
}

int PortOf(int socket) {
  sockaddr_storage storage = {};
  socklen_t bytes = sizeof(storage);
  getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &bytes);
  // The port has the same offset in IPv4 and IPv6 addresses.
  sockaddr_in v4 = {};
  std::memcpy(&v4, &storage, sizeof(v4));
  return ntohs(v4.sin_port);
}

FileDescriptor ListenOn(const sockaddr* address, socklen_t bytes) {
  FileDescriptor made(socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.is_open()) return {};
  const int on = 1;
  const int off = 0;
  // A restarted daemon need not wait for the end of old connections. SO_REUSEPORT stays off: with
  // it, a second daemon would share the port silently.
  if (address->sa_family != AF_UNIX) {
    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (address->sa_family == AF_INET6) {
    setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  // The file of a unix socket has the mode of the socket, less the umask: this makes it private to
  // its owner from the start.
  if (address->sa_family == AF_UNIX) fchmod(made.get(), S_IRUSR | S_IWUSR);
  if (bind(made.get(), address, bytes) != 0 || listen(made.get(), SOMAXCONN) != 0) return {};
  return made;
}

}  // namespace gemmd
