// SPDX-License-Identifier: Apache-2.0
//
// The error for an unknown name, with the known names that look most like it.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace gemmd {

// NotFound: "field: got name, want WANTED (nearest: ...)". The message holds only the beginning of
// `name`, which comes from the caller and may be of any length.
absl::Status UnknownName(std::string_view field, std::string_view name, std::string_view wanted,
                         absl::Span<const std::string_view> known);

}  // namespace gemmd
