// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/time_rule.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/scheduling/admission.h"
#include "server/scheduling/device_queue.h"

namespace gemmd {
namespace {

constexpr int64_t kMaxRetryMs = 10'000;

std::string Text(int64_t ns) {
  // No more digits than a prediction is worth.
  const absl::Duration exact = absl::Nanoseconds(ns);
  const absl::Duration unit =
      exact < absl::Milliseconds(10) ? absl::Microseconds(1) : absl::Milliseconds(1);
  return absl::FormatDuration(absl::Trunc(exact, unit));
}

// The wait may be longer by one part of so many.
constexpr int64_t kPartOfWait = 4;

absl::Status Busy(const std::string& message, int64_t wait_ns) {
  return WithRetryAfterMs(absl::ResourceExhaustedError(message), RetryMs(wait_ns));
}

}  // namespace

int64_t RetryMs(int64_t wait_ns) {
  return std::clamp(wait_ns / 1'000'000, int64_t{1}, kMaxRetryMs);
}

absl::Status TooLateForDeadline(int64_t predicted_ns, int64_t left_ns) {
  return absl::DeadlineExceededError(absl::StrCat("product: predicted to take ", Text(predicted_ns),
                                                  ", ", Text(std::max(left_ns, int64_t{0})),
                                                  " are left until the deadline"));
}

TimeRefusal CheckTime(const TimeAsked& asked, const TimeLimits& limits) {
  const int64_t predicted_ns = asked.predicted_ns;
  if (predicted_ns > limits.max_product_ns) {
    return {absl::ResourceExhaustedError(
                absl::StrCat("product: predicted to take ", Text(predicted_ns), ", at most ",
                             Text(limits.max_product_ns), " is accepted (--max-product-seconds)")),
            RefusalReason::kTooLong};
  }
  if (predicted_ns > asked.left_ns || asked.left_ns <= 0) {
    return {TooLateForDeadline(predicted_ns, asked.left_ns), RefusalReason::kDeadline};
  }
  const int64_t wait_ns = asked.running_ns + asked.ahead_ns + asked.to_come_ns;
  // Where nothing waits ahead of it, the product has the next turn and the prediction is taken at
  // its word. Where something does, its wait may be longer, too: what is let in at the edge is no
  // longer safe at its turn, others go before it until its time is up, and its caller has waited
  // for nothing.
  const int64_t needed_ns =
      asked.ahead_ns == 0 ? predicted_ns : SafeNs(asked.expected_ns) + wait_ns / kPartOfWait;
  if (asked.left_ns != kNoDeadlineNs && wait_ns + needed_ns > asked.left_ns) {
    // What decides is told too.
    const std::string reckoned =
        needed_ns == predicted_ns
            ? ""
            : absl::StrCat(" (reckoned with ", Text(needed_ns), ", because predictions err)");
    return {Busy(absl::StrCat("queue: predicted to wait ", Text(wait_ns), " and to take ",
                              Text(predicted_ns), reckoned, ", ", Text(asked.left_ns),
                              " are left until the deadline"),
                 wait_ns + needed_ns - asked.left_ns),
            RefusalReason::kBacklog};
  }
  if (asked.ahead_ns > limits.max_backlog_ns) {
    return {Busy(absl::StrCat("queue: products of ", Text(asked.ahead_ns),
                              " wait ahead of it by prediction, at most ",
                              Text(limits.max_backlog_ns), " may (--max-backlog)"),
                 asked.ahead_ns - limits.max_backlog_ns),
            RefusalReason::kBacklog};
  }
  return {};
}

}  // namespace gemmd
