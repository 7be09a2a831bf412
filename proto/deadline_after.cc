// SPDX-License-Identifier: Apache-2.0
#include "proto/deadline_after.h"

#include <algorithm>
#include <cstdint>

namespace gemmd {

gpr_timespec DeadlineAfter(absl::Duration timeout) {
  // gRPC's clock has a smaller range than absl's.
  constexpr absl::Duration kLongest = absl::Hours(365 * 24);
  const int64_t ns = absl::ToInt64Nanoseconds(std::min(timeout, kLongest));
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(ns, GPR_TIMESPAN));
}

}  // namespace gemmd
