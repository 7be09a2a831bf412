// SPDX-License-Identifier: Apache-2.0
//
// Whether a product can be in time: by its predicted time, what is ahead of it and its deadline. A
// product that cannot be is refused at once, which costs its caller nothing and the device nothing.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "server/scheduling/stats.h"

namespace gemmd {

struct TimeLimits {
  // The longest product, by prediction.
  int64_t max_product_ns = 60'000'000'000;
  // What may wait ahead of a product, by prediction; what runs does not count. As long as the
  // default of --grace, so that a drain can finish what waits.
  int64_t max_backlog_ns = 20'000'000'000;
};

// A product that has come, and what is before it.
struct TimeAsked {
  int64_t predicted_ns = 0;
  int64_t expected_ns = 0;  // The same, by how the predictions of its caller's last products were.
  int64_t left_ns = 0;      // Until its deadline; kNoDeadlineNs where it has none.
  // The rest of what runs, what waits and would be launched before it, and what others are expected
  // to put there while it waits.
  int64_t running_ns = 0;
  int64_t ahead_ns = 0;
  int64_t to_come_ns = 0;
};

// The refusal of a product; its status is OK where there is none.
struct TimeRefusal {
  absl::Status status;
  RefusalReason reason = RefusalReason::kTooLong;
};

// Errors: ResourceExhausted where the product is too long for this server; DeadlineExceeded where
// it is too long for its deadline; ResourceExhausted that says when to try again where what is
// ahead of it takes too long.
TimeRefusal CheckTime(const TimeAsked& asked, const TimeLimits& limits);

// The refusal of a product that is too long for its deadline.
absl::Status TooLateForDeadline(int64_t predicted_ns, int64_t left_ns);

// Milliseconds after which to try again, for a wait of so long: 1 ms to 10 s.
int64_t RetryMs(int64_t wait_ns);

}  // namespace gemmd
