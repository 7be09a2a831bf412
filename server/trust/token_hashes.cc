// SPDX-License-Identifier: Apache-2.0
#include "server/trust/token_hashes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/trust/identity.h"

namespace gemmd {
namespace {

absl::Status BadLine(int line, std::string_view got, std::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("tokens: line ", line, ": got ", std::string(got),
                                                 ", want ", std::string(want)));
}

std::string_view Stripped(std::string_view text) {
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.front()))) {
    text.remove_prefix(1);
  }
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  return text;
}

}  // namespace

absl::StatusOr<TokenHashes> TokenHashes::Parse(std::string_view text) {
  if (text.size() > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens: got ", text.size(), " bytes, want at most ", kMostBytes));
  }
  TokenHashes hashes;
  for (int line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view entry = Stripped(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (entry.empty() || entry.starts_with('#')) continue;
    const size_t colon = entry.rfind(':');
    if (colon == entry.npos) return BadLine(line, "no colon", "IDENTITY: SHA-256");
    const std::string_view name = Stripped(entry.substr(0, colon));
    const std::optional<TextDigest> digest = TextDigest::FromHex(Stripped(entry.substr(colon + 1)));
    if (!IsOutsideName(name)) {
      return BadLine(line, "a name that no token may give", "up to 256 printable characters");
    }
    if (!digest) return BadLine(line, "no SHA-256", "64 hexadecimal digits");
    if (hashes.Find(*digest)) return BadLine(line, "a hash for the second time", "each one once");
    hashes.by_key_.emplace(digest->Key(), Known{*digest, std::string(name)});
  }
  return hashes;
}

std::optional<std::string> TokenHashes::Find(const TextDigest& digest) const {
  const auto [first, last] = by_key_.equal_range(digest.Key());
  for (auto known = first; known != last; ++known) {
    if (known->second.digest.Equals(digest)) return known->second.name;
  }
  return std::nullopt;
}

}  // namespace gemmd
