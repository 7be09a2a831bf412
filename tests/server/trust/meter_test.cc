// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "server/trust/identity.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

class MeterTest : public ::testing::Test {
 protected:
  absl::StatusOr<Meter::Entry> Enter(int64_t bytes, int64_t expected_ns = 0) {
    return meter_->Enter(limits_, bytes, expected_ns, now_ns_, &retry_after_ns_);
  }

  const std::shared_ptr<Meter> meter_ = std::make_shared<Meter>();
  MeterLimits limits_;
  int64_t now_ns_ = kSecond;
  int64_t retry_after_ns_ = 0;
};

TEST_F(MeterTest, BoundsRequestsAndBytesUntilTheyLeave) {
  limits_.requests = 2;
  limits_.bytes = 100;
  absl::StatusOr<Meter::Entry> first = Enter(60);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(Enter(41), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("60 bytes")));
  absl::StatusOr<Meter::Entry> second = Enter(40);
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(Enter(0), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("2 requests")));
  EXPECT_EQ(retry_after_ns_, 0);
  Meter::Entry moved = *std::move(first);
  EXPECT_EQ(meter_->requests(), 2);
  moved = Meter::Entry();
  EXPECT_EQ(meter_->requests(), 1);
  EXPECT_EQ(meter_->bytes(), 40);
  EXPECT_THAT(Enter(60), IsOk());
}

TEST_F(MeterTest, EarnsTimeOfDevicesByTheMinute) {
  limits_.device_ns_a_minute = 6 * kSecond;
  // One product may overdraw, so that a long one can run at all.
  absl::StatusOr<Meter::Entry> entry = Enter(0, 9 * kSecond);
  ASSERT_THAT(entry, IsOk());
  EXPECT_THAT(Enter(0), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("6000 ms")));
  EXPECT_NEAR(static_cast<double>(retry_after_ns_), 30.0 * kSecond, 1000.0);
  entry->Took(8 * kSecond);
  *entry = Meter::Entry();
  now_ns_ += 19 * kSecond;
  EXPECT_THAT(Enter(0), StatusIs(absl::StatusCode::kResourceExhausted));
  now_ns_ += 2 * kSecond;
  EXPECT_THAT(Enter(0), IsOk());
}

TEST_F(MeterTest, GivesBackTheTimeOfWhatNeverRan) {
  limits_.device_ns_a_minute = kSecond;
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Enter(0, 5 * kSecond), IsOk());
}

TEST_F(MeterTest, CountsNoTimeWithoutABound) {
  for (int i = 0; i < 3; ++i) {
    absl::StatusOr<Meter::Entry> entry = Enter(0, int64_t{1} << 62);
    ASSERT_THAT(entry, IsOk());
    entry->Took(int64_t{1} << 40);
  }
  limits_.device_ns_a_minute = std::numeric_limits<int64_t>::max() - 1;
  EXPECT_THAT(Enter(0), IsOk());
}

}  // namespace
}  // namespace gemmd
