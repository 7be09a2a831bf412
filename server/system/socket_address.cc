// SPDX-License-Identifier: Apache-2.0
#include "server/system/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstring>

namespace gemmd {
namespace {

bool IsLoopback(const in_addr& address) {
  constexpr int kLoopbackNet = 127;
  constexpr int kNetShift = 24;
  return ntohl(address.s_addr) >> kNetShift == kLoopbackNet;
}

bool IsLoopback(const in6_addr& address) {
  constexpr size_t kMapped = 12;  // Where an address of IPv4 lies in one of IPv6.
  if (!IN6_IS_ADDR_V4MAPPED(&address)) return IN6_IS_ADDR_LOOPBACK(&address);
  in_addr v4 = {};
  std::memcpy(&v4, address.s6_addr + kMapped, sizeof(v4));
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

int PortOf(int socket) {
  sockaddr_storage storage = {};
  socklen_t bytes = sizeof(storage);
  getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &bytes);
  // The port lies at the same place in addresses of IPv4 and of IPv6.
  sockaddr_in v4 = {};
  std::memcpy(&v4, &storage, sizeof(v4));
  return ntohs(v4.sin_port);
}

FileDescriptor ListenOn(const sockaddr* address, socklen_t bytes) {
  FileDescriptor made(socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.is_open()) return {};
  const int on = 1;
  const int off = 0;
  // A daemon that starts again need not wait for the end of old connections. SO_REUSEPORT stays
  // off: with it a second daemon would share the port silently.
  if (address->sa_family != AF_UNIX) {
    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (address->sa_family == AF_INET6) {
    setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  // The file of a unix socket has the socket's own mode, less the umask: from its first moment on
  // it is its owner's alone.
  if (address->sa_family == AF_UNIX) fchmod(made.get(), S_IRUSR | S_IWUSR);
  if (bind(made.get(), address, bytes) != 0 || listen(made.get(), SOMAXCONN) != 0) return {};
  return made;
}

}  // namespace gemmd
