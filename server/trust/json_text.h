// SPDX-License-Identifier: Apache-2.0
//
// JSON from a file or a peer and YAML from a file, read strictly and within bounds.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace gemmd {

// Errors: InvalidArgument, which begins with `what`, for more than `max_bytes`, for what is no
// JSON (with its line), for a name that stands twice in an object (with its path, as in
// "keys[1].kid") and for nesting beyond 8 levels. No error repeats a value.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view what, std::string_view text,
                                         size_t max_bytes);

// Reads YAML as the JSON that it stands for. It takes what both have in common: one document of
// objects, lists and scalars, in any style. A scalar without quotes is a number, true, false or
// null if it is that in JSON, otherwise text: "no" and "0x10" are text. Nothing is null.
//
// Errors: InvalidArgument, which begins with `what` and, from the second on, has line and column:
// for more than `max_bytes`, for what is no YAML, for anchors, aliases and tags, for a name that
// is no text or stands twice in an object, for nesting beyond 8 levels and for a second document.
// No error repeats a value.
absl::StatusOr<nlohmann::json> ParseYaml(std::string_view what, std::string_view text,
                                         size_t max_bytes);

}  // namespace gemmd
