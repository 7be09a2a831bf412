// SPDX-License-Identifier: Apache-2.0
//
// Parses JSON from files and peers, and YAML from files, strictly and with limits.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace gemmd {

// Errors: InvalidArgument, beginning with `what`, for more than `max_bytes`, for text that is not
// JSON (with its line), for a duplicate name in an object (with its path, such as "keys[1].kid")
// and for nesting beyond 8 levels. No error repeats a value.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view what, std::string_view text,
                                         size_t max_bytes);

// Parses YAML into the JSON that it stands for. Accepts what both can express: one document of
// objects, lists and scalars, in any style. An unquoted scalar is a number, true, false or null if
// it is one of these in JSON, otherwise a string: "no" and "0x10" are strings. An empty scalar is
// null.
//
// Errors: InvalidArgument, beginning with `what`: for more than `max_bytes`; and, with line and
// column, for text that is not YAML, for anchors, aliases and tags, for a name that is not a string
// or is a duplicate in its object, for nesting beyond 8 levels and for a second document. No error
// repeats a value.
absl::StatusOr<nlohmann::json> ParseYaml(std::string_view what, std::string_view text,
                                         size_t max_bytes);

}  // namespace gemmd
