// SPDX-License-Identifier: Apache-2.0
#include "kernels/matrix/text.h"

#include "kernels/matrix/invalid.h"

namespace gemmd {
namespace {

// Max bytes of a UTF-8 character after the first.
constexpr size_t kMaxFollowing = 3;

bool IsFollowing(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

std::string_view CutAtCharacter(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && most - end < kMaxFollowing && IsFollowing(text[end])) --end;
  return text.substr(0, IsFollowing(text[end]) ? most : end);
}

std::string Shown(std::string_view text) {
  const std::string_view beginning = CutAtCharacter(text, kShownBytes);
  return Concat(beginning, beginning.size() < text.size() ? "..." : "");
}

absl::Status CheckNameLength(std::string_view field, std::string_view name) {
  if (name.size() <= kMaxNameBytes) return absl::OkStatus();
  return Invalid(field, Concat(name.size(), " bytes"), Concat("at most ", kMaxNameBytes));
}

}  // namespace gemmd
