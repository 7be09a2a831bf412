// SPDX-License-Identifier: Apache-2.0
//
// A latency objective, as text and as numbers.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemmd {

// At most `limit_ns` at `fraction` of the latencies from the intended send.
struct SloObjective {
  double fraction = 0;
  int64_t limit_ns = 0;
  std::string text;  // "p99=2ms"
};

// Errors: InvalidArgument for anything but a percentile and a time.
absl::StatusOr<SloObjective> ParseSlo(absl::string_view text);

// Calls without which the percentile would only be the longest of them.
int64_t LeastCalls(const SloObjective& objective);

}  // namespace gemmd
