// SPDX-License-Identifier: Apache-2.0
//
// Text that a peer chose: how long a name from it may be, and how much of it an error repeats.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace gemmd {

// Names, ids and patterns in requests have at most so many bytes.
inline constexpr size_t kMaxNameBytes = 128;

// An error repeats at most so many bytes of a peer's text.
inline constexpr size_t kShownBytes = 64;

// The beginning of UTF-8 text, at most `most` bytes, that ends where a character ends. Text that is
// not UTF-8 is cut anywhere.
std::string_view CutAtCharacter(std::string_view text, size_t most);

// What an error repeats of a peer's text: all of it, or its beginning and "...".
std::string Shown(std::string_view text);

// Errors: InvalidArgument where a name has more than kMaxNameBytes: "kernel: got 5000 bytes, want
// at most 128".
absl::Status CheckNameLength(std::string_view field, std::string_view name);

}  // namespace gemmd
