// SPDX-License-Identifier: Apache-2.0
//
// Predicted times of GPU kernels, with invented rows and rates.
#include "kernels/cuda/prediction.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/epilogue.h"
#include "kernels/cuda/geometry.h"
#include "kernels/mma/instructions.h"

namespace gemmd {
namespace {

constexpr double kRate = 1e12;
constexpr double kRounding = 1e-15;  // Far below a tile or a launch.

// Four multiprocessors, each 2.5e11 operations a second.
DeviceProfile FourMultiprocessors() {
  DeviceProfile profile;
  profile.target = {.kind = DeviceKind::kCuda, .chip = mma::Chip::kSm90, .multiprocessors = 4};
  return profile;
}

// Tiles of 128x64, steps of 32.
CudaRow Row() {
  CudaRow row;
  row.instruction = *mma::FindInstruction("mma.m16n8k16.f32.f16.f16.f32");
  row.tile = {128, 64, 32};
  row.warps_m = 2;
  row.warps_n = 2;
  row.stages = 3;
  return row;
}

Problem ProblemOf(int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
  Problem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.batch = batch;
  problem.a = TightLayout("a", ElementType::kF16, Order::kRowMajor, m, k).value();
  problem.b = TightLayout("b", ElementType::kF16, Order::kColumnMajor, k, n).value();
  problem.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, m, n).value();
  return problem;
}

// The time of a product of one launch, without the launch itself.
double Seconds(const Problem& problem, const DeviceProfile& profile = FourMultiprocessors()) {
  return PredictedSeconds(Row(), problem, profile, kRate) - kLaunchSeconds;
}

constexpr double kStepSeconds = 2.0 * 128 * 64 * 32 / 2.5e11;
constexpr double kEndSeconds = gemmd::kTileSeconds + 128 * 64 * kTileElementSeconds;

// The time of a round of this many tiles per multiprocessor, which are computed one after the
// other.
double RoundSeconds(int together, double steps = 2) {
  return steps * together * kStepSeconds + kEndSeconds * (1 + (together - 1) * kSeenOfBlocks);
}

const double kOneTileSeconds = RoundSeconds(1);  // At k = 64.

TEST(PredictionTest, TilesRunInWaves) {
  ASSERT_EQ(BlocksPerMultiprocessor(Row(), mma::Chip::kSm90), 4);
  EXPECT_NEAR(Seconds(ProblemOf(128, 64, 64)), RoundSeconds(1), kRounding);
  EXPECT_NEAR(Seconds(ProblemOf(256, 128, 64)), RoundSeconds(1), kRounding);
  EXPECT_NEAR(Seconds(ProblemOf(256, 129, 64)), RoundSeconds(2), kRounding);
  EXPECT_NEAR(Seconds(ProblemOf(128, 64, 64, 9)), RoundSeconds(3), kRounding);
  EXPECT_NEAR(Seconds(ProblemOf(128, 64, 64, 17)), 2 * RoundSeconds(4), kRounding);
}

// The faster a step, the longer it waits for its bytes, most of all with ragged lines.
TEST(PredictionTest, AStepTakesNoLessThanItsBytes) {
  constexpr double kHuge = 1e18;
  DeviceProfile profile = FourMultiprocessors();
  const auto steps_of = [&](int64_t k) {
    const double ends = kLaunchSeconds + kEndSeconds;
    const Problem problem = ProblemOf(128, 64, k, profile.target.multiprocessors);
    return PredictedSeconds(Row(), problem, profile, kHuge) - ends;
  };
  EXPECT_NEAR(steps_of(64), 2 * kStageSeconds / 3, kRounding);
  EXPECT_NEAR(steps_of(56), 2 * kStageSeconds / 3, kRounding);
  profile.target.multiprocessors = 1000;
  EXPECT_NEAR(steps_of(64), 2 * kStageSeconds / 3, kRounding);
  EXPECT_NEAR(steps_of(56), 2 * 1000.0 * StageBytes(Row()) / kRaggedBytesPerSecond, kRounding);
  // Four blocks of a multiprocessor share what reaches it.
  const double of_four = PredictedSeconds(Row(), ProblemOf(128, 64, 64, 4000), profile, kHuge) -
                         kLaunchSeconds - kEndSeconds * (1 + 3 * kSeenOfBlocks);
  EXPECT_NEAR(of_four, 2 * 4 * StageBytes(Row()) / kBytesPerSecondEach, kRounding);
}

// A warp that holds whole tiles waits for nothing but its sums, however fast the row is.
TEST(PredictionTest, AStepTakesNoLessThanItsChain) {
  constexpr double kHuge = 1e18;
  CudaRow row = Row();
  row.tile = {16, 64, 64};
  row.warps_m = 1;
  row.warps_n = 4;
  row.stages = 10;
  ASSERT_TRUE(HoldsTile(row));
  const double ends = kLaunchSeconds + gemmd::kTileSeconds + 16 * 64 * kTileElementSeconds;
  const double steps =
      PredictedSeconds(row, ProblemOf(16, 64, 640), FourMultiprocessors(), kHuge) - ends;
  EXPECT_NEAR(steps, 10 * 4 * kChainedSeconds, kRounding);
  row.warps_n = 2;
  EXPECT_FALSE(HoldsTile(row)) << "its warps have twice as many fragments";
}

// Microseconds of kernels on an H200, 2026-11-24.
TEST(PredictionTest, AResultWithoutAProductIsNearWhatItTook) {
  struct Taken {
    int64_t side;
    double us;
  };
  DeviceProfile h200;
  h200.target = {.kind = DeviceKind::kCuda, .multiprocessors = 132};
  h200.memory_bytes_per_second = 4e12;
  // f32, s32 and f64.
  const Taken all[] = {{64, 8.8},     {64, 10.5},    {64, 6.6},     {256, 10.0},   {256, 13.4},
                       {256, 14.6},   {512, 17.3},   {512, 16.0},   {512, 20.7},   {1000, 24.2},
                       {1000, 22.0},  {1000, 26.4},  {2048, 33.6},  {2048, 48.1},  {2048, 55.5},
                       {4096, 106.2}, {4096, 118.0}, {4096, 109.6}, {8192, 332.5}, {8192, 374.7}};
  for (const auto& [side, us] : all) {
    const double predicted_us =
        1e6 * PredictedSeconds(Row(), ProblemOf(side, side, 0), h200, kRate);
    EXPECT_GT(predicted_us, us / 1.6) << side;
    EXPECT_LT(predicted_us, us * 1.6) << side;
  }
}

// A row of warpgroups: one instruction across, tiles of m x 64.
CudaRow WarpgroupRow(int16_t m, int8_t warps, int8_t stages) {
  CudaRow row;
  row.instruction = *mma::FindInstruction("wgmma.m64n64k16.f32.f16.f16");
  row.tile = {m, 64, 64};
  row.warps_m = warps;
  row.warps_n = 1;
  row.stages = stages;
  row.pipeline = Pipeline::kWarpgroups;
  return row;
}

// For `tiles` matrices of the row's tile, without the launch and the steps.
double EndsOf(const CudaRow& row, int64_t tiles, double steps) {
  const Problem problem = ProblemOf(row.tile.m, row.tile.n, row.tile.k, tiles);
  return PredictedSeconds(row, problem, FourMultiprocessors(), kRate) - kLaunchSeconds -
         steps * 2.0 * row.tile.m * row.tile.n * row.tile.k / 2.5e11;
}

TEST(PredictionTest, ATileEndsAsItsRowStoresIt) {
  const double end = gemmd::kTileSeconds + 128 * 64 * kTileElementSeconds;
  CudaRow wide = WarpgroupRow(128, 8, 8);
  EXPECT_NEAR(EndsOf(wide, 4, 1), end, kRounding);
  EXPECT_NEAR(EndsOf(wide, 5, 2), 2 * end, kRounding);
  wide.pipeline = Pipeline::kTurns;
  EXPECT_NEAR(EndsOf(wide, 4, 1), kSeenInTurns * end, kRounding);
  const CudaRow narrow = WarpgroupRow(64, 4, 14);
  ASSERT_TRUE(IsNarrow(narrow) && !IsTiny(narrow));
  EXPECT_NEAR(EndsOf(narrow, 4, 1), gemmd::kTileSeconds + 64 * 64 * kNarrowElementSeconds,
              kRounding);
}

// Three blocks of a tiny row share a multiprocessor: their steps add up, their ends hardly.
TEST(PredictionTest, TinyTilesHideEachOther) {
  const CudaRow tiny = WarpgroupRow(64, 4, 4);
  ASSERT_TRUE(IsTiny(tiny) && !IsNarrow(tiny));
  ASSERT_EQ(BlocksPerMultiprocessor(tiny, mma::Chip::kSm90), 3);
  const double end = gemmd::kTileSeconds + 64 * 64 * kTileElementSeconds;
  EXPECT_NEAR(EndsOf(tiny, 4, 1), end, kRounding);
  EXPECT_NEAR(EndsOf(tiny, 12, 3), end * (1 + 2 * kSeenOfStayingBlocks), kRounding);
  EXPECT_NEAR(EndsOf(tiny, 13, 6), 2 * end * (1 + 2 * kSeenOfStayingBlocks), kRounding);
}

// The copy engine stores whole chunks of 16 bytes: for other lines the sums are kept, and another
// kernel makes D.
TEST(PredictionTest, SumsThatAreKeptTakeAnotherKernel) {
  const CudaRow row = WarpgroupRow(128, 8, 8);
  const auto seconds_of = [&](int64_t n) {
    Problem problem = ProblemOf(128, n, 64);
    problem.d = TightLayout("d", ElementType::kBf16, Order::kRowMajor, 128, n).value();
    return PredictedSeconds(row, problem, FourMultiprocessors(), kRate);
  };
  // 16 tiles of 8 lines, four at a time on each multiprocessor.
  const double elements = 8 * 63.0 / EpilogueAloneTile::kThreads;
  EXPECT_NEAR(seconds_of(63) - seconds_of(64),
              kPackSeconds + std::ceil(elements) * kAloneElementSeconds, kRounding);
}

TEST(PredictionTest, PartsOfTilesCostAsMuchAsTiles) {
  EXPECT_NEAR(Seconds(ProblemOf(8, 8, 40)), RoundSeconds(1), kRounding);
  EXPECT_NEAR(Seconds(ProblemOf(8, 8, 72)), RoundSeconds(1, 3), kRounding);
}

TEST(PredictionTest, WithoutMultiprocessorsTilesRunOneByOneAtTheFullRate) {
  DeviceProfile none = FourMultiprocessors();
  none.target.multiprocessors = 0;
  const double steps = 2 * 4 * kStepSeconds / 4;
  EXPECT_NEAR(Seconds(ProblemOf(256, 128, 64), none), steps + kEndSeconds * (1 + 3 * kSeenOfBlocks),
              kRounding);
}

TEST(PredictionTest, MemoryLimits) {
  DeviceProfile profile = FourMultiprocessors();
  const Problem problem = ProblemOf(256, 128, 64);
  const double bytes = 2.0 * 256 * 64 + 2.0 * 128 * 64 + 4.0 * 256 * 128;
  profile.memory_bytes_per_second = 1e9;
  EXPECT_NEAR(Seconds(problem, profile), bytes / 1e9, kRounding);
  // One tile has kMaxShare times its multiprocessor's quarter of the bandwidth.
  const double bytes_of_one = 2.0 * 128 * 64 + 2.0 * 64 * 64 + 4.0 * 128 * 64;
  EXPECT_NEAR(Seconds(ProblemOf(128, 64, 64), profile), 4 / kMaxShare * bytes_of_one / 1e9,
              kRounding);
  profile.memory_bytes_per_second = 1e15;
  EXPECT_NEAR(Seconds(problem, profile), kOneTileSeconds, kRounding);
}

// A tile of 128x64 loads 192 lines, of which 144 or 72 are inside the matrices.
TEST(PredictionTest, LinesBeyondTheMatricesTakeTime) {
  DeviceProfile profile = FourMultiprocessors();
  profile.memory_bytes_per_second = 1e9;
  const double bytes = 2.0 * 512 * 64 + 2.0 * 16 * 64 + 4.0 * 512 * 16;
  EXPECT_NEAR(Seconds(ProblemOf(512, 16, 64), profile), 192.0 / 144 * bytes / 1e9, kRounding);
  const double few = 2.0 * 8 * 64 + 2.0 * 512 * 64 + 4.0 * 8 * 512;
  EXPECT_NEAR(Seconds(ProblemOf(8, 512, 64), profile), 2.0 * few / 1e9, kRounding);
}

TEST(PredictionTest, PackingTakesTime) {
  DeviceProfile profile = FourMultiprocessors();
  profile.memory_bytes_per_second = 1e9;
  Problem problem = ProblemOf(128, 64, 64);
  const double in_place = Seconds(problem, profile);
  problem.b.order = Order::kRowMajor;
  EXPECT_NEAR(Seconds(problem, profile), in_place + kPackSeconds + 2 * (2.0 * 64 * 64) / 1e9,
              kRounding);
}

TEST(PredictionTest, EveryLaunchTakesTime) {
  const DeviceProfile profile = FourMultiprocessors();
  Problem problem = ProblemOf(1, 1, 32, 4);
  const double in_place = PredictedSeconds(Row(), problem, profile, kRate);
  EXPECT_GE(in_place, kLaunchSeconds);
  EXPECT_LT(in_place, 2 * kLaunchSeconds);  // The whole batch is one launch.
  problem.a.order = Order::kColumnMajor;
  problem.b.order = Order::kRowMajor;
  EXPECT_GE(PredictedSeconds(Row(), problem, profile, kRate), in_place);
}

TEST(PredictionTest, WithoutAProductOnlyDIsWritten) {
  DeviceProfile profile = FourMultiprocessors();
  Problem problem = ProblemOf(128, 64, 64);
  problem.alpha = 0;
  EXPECT_NEAR(Seconds(problem, profile), 2 * kAloneElementSeconds, kRounding);
  profile.memory_bytes_per_second = 1e9;
  EXPECT_NEAR(Seconds(problem, profile), 4.0 * 128 * 64 / 1e9, kRounding);
  EXPECT_EQ(PredictedSeconds(Row(), ProblemOf(0, 0, 64), profile, kRate), 0);
}

}  // namespace
}  // namespace gemmd
