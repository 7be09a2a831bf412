// SPDX-License-Identifier: Apache-2.0
//
// JSON of a file that was written, or edited, by hand.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// What is nested more than 32 deep is left out: to print it would take as deep a stack.
// Errors: InvalidArgument for what is no JSON, with its place; and for a name that stands twice in
// an object, as "path[1].to.name: got it twice, want each name once": the library would take the
// last of the two.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text);

}  // namespace gemmd
