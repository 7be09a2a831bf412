// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/product/admission.h"
#include "server/system/clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;

constexpr Admission::Limits kLimits = {.max_product_ns = 2000 * kMs, .max_backlog_ns = 1000 * kMs};

ProductRefusal Check(const Asked& asked) {
  return RefusalOf(CheckTime(asked, kLimits), asked, kLimits);
}

TEST(TimeRuleTest, AProductMayBeAsLongAsTheServerAllows) {
  Asked asked = {.predicted_ns = 2000 * kMs, .left_ns = kNoDeadlineNs};
  EXPECT_THAT(Check(asked).status, IsOk());
  asked.predicted_ns += kMs;
  const ProductRefusal refusal = Check(asked);
  EXPECT_THAT(refusal.status, StatusIs(absl::StatusCode::kResourceExhausted,
                                       "product: predicted to take 2.001s, at most 2s is accepted "
                                       "(--max-product-seconds)"));
  EXPECT_EQ(RetryAfterMs(refusal.status), std::nullopt);  // It would not help.
  EXPECT_EQ(refusal.reason, RefusalReason::kTooLong);
}

TEST(TimeRuleTest, AProductMustFitIntoItsOwnTime) {
  Asked asked = {.predicted_ns = 300 * kMs, .left_ns = 300 * kMs};
  EXPECT_THAT(Check(asked).status, IsOk());
  asked.left_ns -= kMs;
  const ProductRefusal refusal = Check(asked);
  EXPECT_THAT(refusal.status,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "product: predicted to take 300ms, 299ms are left until the deadline"));
  EXPECT_EQ(refusal.reason, RefusalReason::kDeadline);
  asked = {.predicted_ns = 0, .left_ns = -5};
  EXPECT_THAT(Check(asked).status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(", 0 are left")));
}

TEST(TimeRuleTest, WhatRunsMustLeaveTime) {
  Asked asked = {.predicted_ns = 300 * kMs, .left_ns = 500 * kMs, .running_ns = 200 * kMs};
  EXPECT_THAT(Check(asked).status, IsOk());
  asked.running_ns += 30 * kMs;
  const ProductRefusal refusal = Check(asked);
  EXPECT_THAT(refusal.status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "queue: predicted to wait 230ms and to take 300ms, 500ms are left until "
                       "the deadline"));
  EXPECT_EQ(RetryAfterMs(refusal.status), 30);
  EXPECT_EQ(refusal.reason, RefusalReason::kBacklog);
}

TEST(TimeRuleTest, WhatIsToComeIsWaitedFor) {
  Asked asked = {.predicted_ns = 100 * kMs,
                 .expected_ns = 100 * kMs,
                 .left_ns = 452 * kMs,
                 .ahead_ns = 100 * kMs,
                 .to_come_ns = 100 * kMs};
  EXPECT_THAT(Check(asked).status, IsOk());
  asked.to_come_ns += 10 * kMs;
  const ProductRefusal refusal = Check(asked);
  EXPECT_THAT(refusal.status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("queue: predicted to wait 210ms and to take 100ms (reserved: "
                                 "253ms, because predictions err), 452ms are left")));
  EXPECT_EQ(refusal.reason, RefusalReason::kBacklog);
}

// If anything waits ahead, its prediction may be wrong by a quarter, and the product's own by half.
TEST(TimeRuleTest, AQueueAheadTakesRoomForErrors) {
  Asked asked = {.predicted_ns = 100 * kMs,
                 .expected_ns = 100 * kMs,
                 .left_ns = 389 * kMs,
                 .running_ns = 50 * kMs,
                 .ahead_ns = 100 * kMs};
  EXPECT_THAT(Check(asked).status, IsOk());
  asked.left_ns -= kMs;
  EXPECT_EQ(Check(asked).reason, RefusalReason::kBacklog);
}

TEST(TimeRuleTest, TheBacklogIsBoundedWithoutADeadline) {
  Asked asked = {.predicted_ns = kMs, .left_ns = kNoDeadlineNs, .ahead_ns = 1000 * kMs};
  asked.running_ns = 2000 * kMs;  // Does not count: the next product may always wait.
  EXPECT_THAT(Check(asked).status, IsOk());
  asked.ahead_ns += 70 * kMs;
  const ProductRefusal refusal = Check(asked);
  EXPECT_THAT(refusal.status, StatusIs(absl::StatusCode::kResourceExhausted,
                                       "queue: products predicted to take 1.07s wait ahead of it, "
                                       "at most 1s may (--max-backlog)"));
  EXPECT_EQ(RetryAfterMs(refusal.status), 70);
}

TEST(TimeRuleTest, RetriesAreNeitherAtOnceNorNever) {
  EXPECT_EQ(RetryMs(0), 1);
  EXPECT_EQ(RetryMs(1500 * kMs), 1500);
  EXPECT_EQ(RetryMs(3'600'000 * kMs), 10'000);
}

}  // namespace
}  // namespace gemmd
