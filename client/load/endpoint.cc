// SPDX-License-Identifier: Apache-2.0
#include "client/load/endpoint.h"

#include <unistd.h>

#include <array>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace gemmd {
namespace {

// "[::1]:8470", "host:8470" or an address without a port.
absl::string_view HostOf(absl::string_view address) {
  if (absl::ConsumePrefix(&address, "[")) return address.substr(0, address.find(']'));
  const size_t colon = address.find(':');
  // Several colons without brackets are those of an IPv6 address.
  if (colon == address.npos || address.find(':', colon + 1) != address.npos) return address;
  return address.substr(0, colon);
}

// "127.0.0.1" and its like, not "127.example.org".
bool IsLoopback4(absl::string_view host) {
  return absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == host.npos;
}

}  // namespace

bool IsThisMachine(absl::string_view address, absl::string_view host_name) {
  if (!absl::ConsumePrefix(&address, "tls:")) absl::ConsumePrefix(&address, "mtls:");
  for (absl::string_view scheme : {"unix:", "unix-abstract:"}) {
    if (absl::StartsWith(address, scheme)) return true;
  }
  for (absl::string_view scheme : {"dns:", "ipv4:", "ipv6:", "passthrough:"}) {
    if (!absl::ConsumePrefix(&address, scheme)) continue;
    // "//", who is to be asked, "/".
    if (absl::ConsumePrefix(&address, "//")) {
      const size_t slash = address.find('/');
      address.remove_prefix(slash == address.npos ? 0 : slash + 1);
    }
    break;
  }
  const absl::string_view host = HostOf(address.substr(0, address.find(',')));
  return IsLoopback4(host) || host == "::1" || absl::EqualsIgnoreCase(host, "localhost") ||
         (!host_name.empty() && absl::EqualsIgnoreCase(host, host_name));
}

std::string HostName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace gemmd
