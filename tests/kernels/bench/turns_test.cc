// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/status_matchers.h"

namespace gemmd::bench {
namespace {

using testing::Each;
using testing::SizeIs;

// A run takes the next time of a list, multiplied by `times`; the last one repeats.
class ScriptedLoop : public Loop {
 public:
  ScriptedLoop(std::string name, std::vector<double> seconds, std::string& log, int calls = 1)
      : name_(std::move(name)), seconds_(std::move(seconds)), log_(log), calls_(calls) {}

  absl::StatusOr<double> Run(int times) override {
    log_ += name_;
    total_times += times;
    const double seconds = seconds_[std::min(next_++, seconds_.size() - 1)];
    if (seconds < 0) return absl::InternalError("lost");
    return times * seconds;
  }
  int calls() const override { return calls_; }
  int sm_clock_mhz() const override { return 1000 + total_times; }

  int total_times = 0;

 private:
  const std::string name_;
  const std::vector<double> seconds_;
  std::string& log_;
  const int calls_;
  size_t next_ = 0;
};

// Without a warm-up, samples of a millisecond.
TurnSettings Brief(int min_samples) {
  return {.seconds = 0,
          .min_samples = min_samples,
          .sample = 1e-3,
          .warm_up = 0,
          .settled = 0,
          .longest_warm_up = 0};
}

TEST(TurnsTest, TakesTurns) {
  std::string log;
  ScriptedLoop a("a", {1e-3}, log);
  ScriptedLoop b("b", {2e-3}, log);
  Contender contenders[] = {{&a}, {&b}};
  ASSERT_THAT(TakeTurns(absl::MakeSpan(contenders), Brief(3)), IsOk());
  EXPECT_EQ(log, "aabbababab");
  EXPECT_THAT(contenders[0].seconds, SizeIs(3));
  EXPECT_THAT(contenders[1].seconds, Each(2e-3));
  EXPECT_THAT(contenders[0].clocks, testing::ElementsAre(1003, 1004, 1005));
}

TEST(TurnsTest, TimesAreOfOneCall) {
  std::string log;
  ScriptedLoop loop("a", {6e-4}, log, 4);
  Contender contenders[] = {{&loop}};
  ASSERT_THAT(TakeTurns(absl::MakeSpan(contenders), Brief(3)), IsOk());
  EXPECT_EQ(contenders[0].times, 2);  // A sample is no shorter than a millisecond.
  EXPECT_THAT(contenders[0].seconds, Each(testing::DoubleEq(1.5e-4)));
}

TEST(TurnsTest, GoesOnUntilTheTimeIsUp) {
  std::string log;
  ScriptedLoop loop("a", {1e-2}, log);
  Contender contenders[] = {{&loop}};
  TurnSettings settings = Brief(1);
  settings.seconds = 0.0999;
  ASSERT_THAT(TakeTurns(absl::MakeSpan(contenders), settings), IsOk());
  EXPECT_THAT(contenders[0].seconds, SizeIs(10));
}

TEST(TurnsTest, WarmsUpUntilTimesSettle) {
  std::string log;
  // The first two determine the number of repetitions.
  ScriptedLoop loop("a", {1e-3, 1e-3, 1e-3, 1.1e-3, 1.2e-3, 1.3e-3, 1.3e-3, 1.3e-3}, log);
  Contender contenders[] = {{&loop}};
  TurnSettings settings = Brief(2);
  settings.settled = 0.01;
  settings.longest_warm_up = 1;
  ASSERT_THAT(TakeTurns(absl::MakeSpan(contenders), settings), IsOk());
  EXPECT_THAT(log, SizeIs(2 + 6 + 2));
  EXPECT_THAT(contenders[0].seconds, Each(testing::DoubleEq(1.3e-3)));
}

TEST(TurnsTest, DoesNotWarmUpForEver) {
  std::string log;
  std::vector<double> never_settles;
  for (int i = 0; i < 1000; ++i) never_settles.push_back(i % 2 == 0 ? 1e-3 : 2e-3);
  ScriptedLoop loop("a", never_settles, log);
  Contender contenders[] = {{&loop}};
  TurnSettings settings = Brief(1);
  settings.settled = 0.01;
  settings.longest_warm_up = 0.03;
  ASSERT_THAT(TakeTurns(absl::MakeSpan(contenders), settings), IsOk());
  EXPECT_LE(log.size(), 30U);
}

TEST(TurnsTest, ALoopThatTakesNoTimeEnds) {
  std::string log;
  ScriptedLoop loop("a", {0}, log);
  Contender contenders[] = {{&loop}};
  TurnSettings settings = Brief(1);
  settings.seconds = 1e-5;
  ASSERT_THAT(TakeTurns(absl::MakeSpan(contenders), settings), IsOk());
  EXPECT_LE(contenders[0].seconds.size(), 101U);
}

TEST(TurnsTest, EndsWhereTheDeviceIsLost) {
  std::string log;
  ScriptedLoop a("a", {1e-3, 1e-3, 1e-3, -1}, log);
  Contender contenders[] = {{&a}};
  EXPECT_THAT(TakeTurns(absl::MakeSpan(contenders), Brief(5)),
              StatusIs(absl::StatusCode::kInternal));
}

}  // namespace
}  // namespace gemmd::bench
