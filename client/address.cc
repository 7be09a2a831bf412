// SPDX-License-Identifier: Apache-2.0
#include "client/address.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/option/decimal.h"

namespace gemmd {
namespace {

constexpr size_t kLongestPath = 107;  // sockaddr_un has room for that, and a zero.
constexpr absl::string_view kWantAny = "host:port (port 1 to 65535), tls:host:port or unix:/path";

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", text, "\""); }

// Each of the following says what the address should be, or look like; empty: it is good.

std::string WantOfHostAndPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return std::string(kWantAny);
  const absl::string_view digits = address.substr(colon + 1);
  if (option::ParseDecimal<uint16_t>({digits.data(), digits.size()}).value_or(0) == 0) {
    return std::string(kWantAny);
  }
  absl::string_view host = address.substr(0, colon);
  const bool is_closed =
      absl::ConsumePrefix(&host, "[") == absl::ConsumeSuffix(&host, "]") && !host.empty();
  if (!is_closed || host.find_first_of("/[]@\"\\") != host.npos) return std::string(kWantAny);
  if (absl::StrContains(host, ':') && address.front() != '[') {
    return "[host]:port for an address of IPv6, as in \"[::1]:8470\"";
  }
  return "";
}

std::string WantOfPath(absl::string_view path) {
  if (path.empty()) return "something after the scheme";
  if (path.size() <= kLongestPath) return "";
  return absl::StrCat("a path of at most ", kLongestPath, " bytes, not ", path.size());
}

std::string WantOfUnix(absl::string_view path) {
  if (absl::ConsumePrefix(&path, "//") && !absl::StartsWith(path, "/")) {
    return path.empty() ? std::string(kWantAny) : Quoted(absl::StrCat("unix:/", path));
  }
  return WantOfPath(path);
}

std::string WantOfDns(absl::string_view name) {
  if (absl::ConsumePrefix(&name, "//")) {  // Then the name server to ask, if any.
    const size_t slash = name.find('/');
    if (slash == name.npos) return Quoted(absl::StrCat("dns:///", name));
    name.remove_prefix(slash + 1);
  }
  return name.empty() ? "something after the scheme" : "";
}

std::string WantOfList(absl::string_view list) {
  for (const absl::string_view one : absl::StrSplit(list, ',')) {
    if (!WantOfHostAndPort(one).empty()) {
      return "addresses with ports, as in \"ipv4:10.0.0.1:8470,10.0.0.2:8470\"";
    }
  }
  return "";
}

std::string WantOf(absl::string_view address) {
  absl::string_view rest = address;
  if (absl::ConsumePrefix(&rest, "unix:")) return WantOfUnix(rest);
  if (absl::ConsumePrefix(&rest, "unix-abstract:")) return WantOfPath(rest);
  if (absl::ConsumePrefix(&rest, "dns:")) return WantOfDns(rest);
  if (absl::ConsumePrefix(&rest, "ipv4:") || absl::ConsumePrefix(&rest, "ipv6:")) {
    return WantOfList(rest);
  }
  const size_t scheme_end = address.find("://");
  if (scheme_end == address.npos) return WantOfHostAndPort(address);
  // As browsers have it.
  rest.remove_prefix(scheme_end + 3);
  rest = rest.substr(0, rest.find('/'));
  if (!WantOfHostAndPort(rest).empty()) return std::string(kWantAny);
  const bool has_tls = absl::EndsWith(address.substr(0, scheme_end), "s");
  return Quoted(absl::StrCat(has_tls ? "tls:" : "", rest));
}

}  // namespace

absl::string_view WithoutTls(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, "tls:")) absl::ConsumePrefix(&address, "mtls:");
  return address;
}

bool IsUnix(absl::string_view address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
}

bool IsLoopback(absl::string_view address) {
  for (absl::string_view scheme : {"dns:", "ipv4:", "ipv6:"}) {
    if (absl::ConsumePrefix(&address, scheme)) break;
  }
  absl::ConsumePrefix(&address, "///");
  if (absl::StrContains(address, ',')) return false;
  const absl::string_view host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" ||
         (absl::StartsWith(host, "127.") &&
          host.find_first_not_of("0123456789.") == absl::string_view::npos);
}

bool MayNameSeveral(absl::string_view address) {
  return absl::StartsWith(address, "dns:") || absl::StartsWith(address, "ipv4:") ||
         absl::StartsWith(address, "ipv6:");
}

absl::Status CheckAddress(absl::string_view address) {
  const bool is_graphic = std::all_of(address.begin(), address.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  const absl::string_view target = WithoutTls(address);
  const bool has_tls_twice = WithoutTls(target) != target;
  const std::string want =
      address.empty() || !is_graphic || has_tls_twice ? std::string(kWantAny) : WantOf(target);
  if (want.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("address: got \"", absl::CEscape(address), "\", want ", want));
}

}  // namespace gemmd
