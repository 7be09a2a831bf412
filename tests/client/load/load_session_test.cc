// SPDX-License-Identifier: Apache-2.0
//
// From flags to products and steps.
#include "client/load/load_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/testing/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

TEST(StepsOfTest, FollowsTheFlags) {
  LoadFlags flags;
  flags.concurrency = {1, 8};
  flags.count = 100;
  auto steps = StepsOf(flags);
  ASSERT_THAT(steps, IsOk());
  ASSERT_EQ(steps->size(), 2);
  EXPECT_EQ((*steps)[1].name, "8 in flight");
  EXPECT_EQ(std::get<ClosedLoop>((*steps)[1].step.loop).concurrency, 8);
  EXPECT_GT((*steps)[1].step.duration_ns, 1'000'000'000'000);  // The count ends the step.

  flags = {};
  flags.rates = {100};
  flags.ramp_to = 300;
  flags.warmup = "2";
  flags.duration = "8s";
  flags.arrivals = "poisson";
  steps = StepsOf(flags);
  ASSERT_THAT(steps, IsOk());
  EXPECT_EQ((*steps)[0].name, "100/s to 300/s");
  const ArrivalPlan& arrivals = std::get<OpenLoop>((*steps)[0].step.loop).arrivals;
  EXPECT_TRUE(arrivals.is_poisson);
  EXPECT_EQ(arrivals.rate.to, 300);
  EXPECT_EQ(arrivals.rate.ramp_ns, 10'000'000'000);
}

TEST(StepsOfTest, ReplaysAFile) {
  const ScratchFolder folder;
  LoadFlags flags;
  flags.replay_path = folder.Path("gaps");
  std::ofstream(flags.replay_path) << "1ms\n2ms\n";
  const auto steps = StepsOf(flags);
  ASSERT_THAT(steps, IsOk());
  EXPECT_THAT(std::get<OpenLoop>((*steps)[0].step.loop).arrivals.replay_gaps_ns,
              testing::ElementsAre(1'000'000, 2'000'000));
  std::ofstream(flags.replay_path) << "x\n";
  EXPECT_THAT(StepsOf(flags),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("gaps: line 1: got \"x\"")));
}

TEST(MixOfTest, OneProductIsAsItsFlagsSay) {
  LoadFlags flags;
  flags.shape = {4, 5, 6};
  flags.type = "e4m3";
  flags.output_type = "f16";
  flags.fast_accumulation = true;
  flags.sparse = true;
  flags.b_order = "column";
  flags.batch = 2;
  const auto mix = MixOf(flags);
  ASSERT_THAT(mix, IsOk());
  ASSERT_EQ(mix->size(), 1);
  EXPECT_EQ((*mix)[0].name, "2 of 4x5x6 e4m3 2:4 to f16, fast accumulation, B column major");
  EXPECT_TRUE((*mix)[0].fast_accumulation);
}

TEST(MixOfTest, KernelAndDeviceHoldWhereAProductNamesNone) {
  const ScratchFolder folder;
  LoadFlags flags;
  flags.mix_path = folder.Path("mix.json");
  flags.kernel = "all";
  std::ofstream(flags.mix_path)
      << R"([{"m":1,"n":1,"k":1,"kernel":"own"},{"m":2,"n":1,"k":1,"device":"cpu"}])";
  const auto mix = MixOf(flags);
  ASSERT_THAT(mix, IsOk());
  EXPECT_EQ((*mix)[0].kernel, "own");
  EXPECT_EQ((*mix)[1].kernel, "all");
  EXPECT_EQ((*mix)[1].device, "cpu");
}

}  // namespace
}  // namespace gemmd
