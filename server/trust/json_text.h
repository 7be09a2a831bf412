// SPDX-License-Identifier: Apache-2.0
//
// JSON from a file or a peer, read strictly.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace gemmd {

// Errors: InvalidArgument, which begins with `what`, for more than `most_bytes`, for what is no
// JSON (with its line), for a name that stands twice in an object (with its path, as in
// "keys[1].kid") and for nesting beyond 8 levels. No error repeats a value.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view what, std::string_view text,
                                         size_t most_bytes);

}  // namespace gemmd
