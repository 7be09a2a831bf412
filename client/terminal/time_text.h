// SPDX-License-Identifier: Apache-2.0
//
// Times as people write them.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gemmd {

// "90", "1.5" (seconds), "500ms", "2m"; absent for any other text. A negative or infinite time is
// read too: what makes sense is for the caller to say.
std::optional<absl::Duration> ParseTime(absl::string_view text);

}  // namespace gemmd
