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
#include "server/system/socket_address.h"

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

  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

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
    std::memcpy(&endpoint.storage, &v6, sizeof(v6));
    return endpoint;
  }
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) != 1) return std::nullopt;
  endpoint.bytes = sizeof(v4);
  std::memcpy(&endpoint.storage, &v4, sizeof(v4));
  return endpoint;
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
      !IsLoopback(endpoint->address())) {
    return absl::FailedPreconditionError(
        GotWant("metrics-listen", address,
                "a loopback address, tls:ADDRESS or mtls:ADDRESS: whoever reaches a plain address "
                "may read the metrics, and others on the way; --insecure-allow-remote allows it"));
  }
  FileDescriptor socket = ListenOn(endpoint->address(), endpoint->bytes);
  if (!socket.is_open()) {
    return absl::UnavailableError(
        Concat("metrics-listen: cannot listen on ", address, ": ",
               std::error_code(errno, std::generic_category()).message()));
  }
  std::string bound = Concat(address.substr(0, address.rfind(':')), ":", PortOf(socket.get()));
  return HttpSocket{std::move(socket), std::move(bound)};
}

}  // namespace gemmd
