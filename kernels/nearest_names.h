// SPDX-License-Identifier: Apache-2.0
//
// What to say about a name that nobody knows: the names that look most like it.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace gemmd {

// NotFound: "field: got name, want WANTED (nearest: ...)". The message holds the beginning of
// `name` only, which is the caller's and may be of any length.
absl::Status UnknownName(std::string_view field, std::string_view name, std::string_view wanted,
                         absl::Span<const std::string_view> known);

}  // namespace gemmd
