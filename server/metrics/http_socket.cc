// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/http_socket.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

constexpr std::string_view kTlsPrefix = "tls:";
constexpr std::string_view kMutualTlsPrefix = "mtls:";

std::string_view WithoutPrefix(std::string_view address) {
  for (const std::string_view prefix : {kTlsPrefix, kMutualTlsPrefix}) {
    if (address.starts_with(prefix)) return address.substr(prefix.size());
  }
  return address;
}

struct Endpoint {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;
  bool is_loopback = false;
};

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

std::optional<Endpoint> ParseEndpoint(std::string_view address) {
  address = WithoutPrefix(address);
  const size_t colon = address.rfind(':');
  if (colon == address.npos) return std::nullopt;
  std::string host(address.substr(0, colon));
  const std::string_view digits = address.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  Endpoint endpoint;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    sockaddr_in6 v6 = {};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    host = host.substr(1, host.size() - 2);
    if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) return std::nullopt;
    endpoint.bytes = sizeof(v6);
    endpoint.is_loopback = IsLoopback(v6.sin6_addr);
    std::memcpy(&endpoint.storage, &v6, sizeof(v6));
    return endpoint;
  }
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) != 1) return std::nullopt;
  endpoint.bytes = sizeof(v4);
  endpoint.is_loopback = IsLoopback(v4.sin_addr);
  std::memcpy(&endpoint.storage, &v4, sizeof(v4));
  return endpoint;
}

absl::StatusOr<FileDescriptor> ListenOn(const Endpoint& endpoint) {
  const auto last_error = [] {
    return absl::UnavailableError(std::error_code(errno, std::generic_category()).message());
  };
  FileDescriptor made(
      socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.is_open()) return last_error();
  // A daemon that starts again need not wait for the end of old connections.
  const int on = 1;
  setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const auto* const address = reinterpret_cast<const sockaddr*>(&endpoint.storage);
  if (bind(made.get(), address, endpoint.bytes) != 0) return last_error();
  if (listen(made.get(), SOMAXCONN) != 0) return last_error();
  return made;
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

}  // namespace

HttpSecurity HttpSecurityOf(std::string_view address) {
  if (address.starts_with(kTlsPrefix)) return HttpSecurity::kTls;
  return address.starts_with(kMutualTlsPrefix) ? HttpSecurity::kMutualTls : HttpSecurity::kNone;
}

absl::Status CheckHttpAddress(std::string_view address) {
  if (ParseEndpoint(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      GotWant("metrics-listen", address,
              "an IP address and a port: 127.0.0.1:8471, tls:0.0.0.0:8471, mtls:[::]:8471"));
}

absl::StatusOr<HttpSocket> ListenForHttp(std::string_view address, PlainHttpReach reach) {
  RETURN_IF_ERROR(CheckHttpAddress(address));
  const std::optional<Endpoint> endpoint = ParseEndpoint(address);
  if (HttpSecurityOf(address) == HttpSecurity::kNone && reach == PlainHttpReach::kLoopback &&
      !endpoint->is_loopback) {
    return absl::FailedPreconditionError(
        GotWant("metrics-listen", address,
                "a loopback address, tls:ADDRESS or mtls:ADDRESS: whoever reaches a plain address "
                "may read the metrics, and others on the way; --insecure-allow-remote allows it"));
  }
  absl::StatusOr<FileDescriptor> socket = ListenOn(*endpoint);
  if (!socket.ok()) {
    return absl::UnavailableError(Concat("metrics-listen: cannot listen on ", address, ": ",
                                         std::string(socket.status().message())));
  }
  std::string bound = Concat(address.substr(0, address.rfind(':')), ":", PortOf(socket->get()));
  return HttpSocket{*std::move(socket), std::move(bound)};
}

}  // namespace gemmd
