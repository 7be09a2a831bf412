// SPDX-License-Identifier: Apache-2.0
//
// Launches in panels give the bits of a single launch, and panels begin at addresses that the GPU's
// loads require.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "server/crossing/job_layout.h"
#include "server/worker/run.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

constexpr int64_t kLong = 1'000'000'000;  // Predicted nanoseconds, which call for a hundred panels.

// A product of the simulator whose matrices are laid out as in a worker.
class Case {
 public:
  Case(std::string_view kernel, int64_t m, int64_t n, int64_t k, int64_t batch, int orders)
      : kernel_(**FindKernel(kernel)) {
    const auto order = [orders](int bit) {
      return (orders >> bit & 1) != 0 ? Order::kColumnMajor : Order::kRowMajor;
    };
    problem.m = m;
    problem.n = n;
    problem.k = k;
    problem.batch = batch;
    problem.a = *TightLayout("a", kernel_.a, order(0), m, k);
    if (kernel_.instruction->is_sparse()) problem.a = *TightSparseLayout("a", kernel_.a, m, k);
    problem.b = *TightLayout("b", kernel_.b, order(1), k, n);
    problem.d = *TightLayout("d", kernel_.recipe.accumulation, order(2), m, n);
    problem.c = *TightLayout("c", kernel_.recipe.accumulation, order(1), m, n);
    problem.accumulation = kernel_.recipe.accumulation;
  }

  // D, computed in these panels.
  std::vector<std::byte> Run(const GpuPanels& panels) {
    const JobLayout layout = *LayOutJob(problem);
    std::vector<std::byte> memory(static_cast<size_t>(layout.end + kJobAlignment));
    void* place = memory.data();
    size_t space = memory.size();
    auto* const block = static_cast<std::byte*>(
        std::align(kJobAlignment, static_cast<size_t>(layout.end), place, space));
    // Starts at the aligned address, whose offset differs between runs.
    RandomSource random(1);
    for (int64_t i = 0; i < layout.end; ++i)
      block[i] = static_cast<std::byte>(random.Bits() & 0x3f);
    std::fill_n(block + layout.d.offset, layout.d.bytes, std::byte{0xee});
    std::vector<double> workspace(static_cast<size_t>(*kernel_.workspace_bytes(problem) + 127) / 8);
    const GemmArgs args = ArgsAt(
        problem, {.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90}, layout, block,
        absl::MakeSpan(reinterpret_cast<std::byte*>(workspace.data()), 8 * workspace.size()));
    for (int64_t i = 0; i < panels.count(); ++i) {
      const PanelProblem panel = ProblemOfGpuPanel(problem, panels, i);
      EXPECT_THAT(Validate(panel.problem), IsOk());
      const GemmArgs part = PanelArgs(args, panel);
      for (const std::byte* start :
           {part.a, part.b, part.c, part.bias, static_cast<const std::byte*>(part.d)}) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(start) % kJobAlignment, 0U);
      }
      EXPECT_THAT(kernel_.launch(part), IsOk());
    }
    return {block + layout.d.offset, block + layout.d.offset + layout.d.bytes};
  }

  void ExpectBitsOfOneLaunch(GpuPanels::Axis axis, int64_t count) {
    const GpuPanels panels = DivideLaunch(problem, kLong);
    EXPECT_EQ(panels.axis, axis);
    EXPECT_EQ(panels.count(), count);
    EXPECT_EQ(Run(panels), Run(DivideLaunch(problem, 0)));
  }

  Problem problem;

 private:
  const Kernel& kernel_;
};

TEST(GpuPanelsTest, ShortLaunchesAreWhole) {
  Case one("mma.m16n8k16.f32.f16.f16.f32", 100, 100, 10, 3, 0);
  for (const int64_t ns : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{10'000'000}}) {
    EXPECT_EQ(DivideLaunch(one.problem, ns).count(), 1);
  }
  EXPECT_EQ(DivideLaunch(one.problem, INT64_MAX).count(), 1);  // At least 256 matrices.
  one.problem.batch = 1 << 20;
  EXPECT_EQ(DivideLaunch(one.problem, 40'000'000).count(), 4);
}

TEST(GpuPanelsTest, OverRowsOrColumns) {
  for (int orders = 0; orders < 8; ++orders) {
    SCOPED_TRACE(orders);
    Case rows("mma.m16n8k16.f32.f16.f16.f32", 4500, 9, 20, 1, orders);
    rows.problem.beta = 0.5;
    rows.problem.bias_axis = BiasAxis::kRows;
    rows.problem.bias_type = ElementType::kF16;
    rows.ExpectBitsOfOneLaunch(GpuPanels::Axis::kRows, 18);
    Case columns("mma.m16n8k16.f32.f16.f16.f32", 9, 4500, 20, 2, orders);
    columns.problem.beta = 0.5;
    columns.problem.bias_axis = BiasAxis::kColumns;
    columns.ExpectBitsOfOneLaunch(GpuPanels::Axis::kColumns, 18);
  }
}

TEST(GpuPanelsTest, OfNarrowTypesAndScales) {
  for (int orders = 0; orders < 8; ++orders) {
    SCOPED_TRACE(orders);
    Case bits("mma.m16n8k256.s32.b1.b1.s32.and.popc", 4500, 9, 256, 1, orders & 4);
    bits.ExpectBitsOfOneLaunch(GpuPanels::Axis::kRows, 3);
    Case scaled("mma.m16n8k32.f32.e4m3.e4m3.f32", 9, 4500, 32, 1, orders);
    scaled.problem.a_scale = scaled.problem.b_scale = ScaleKind::kVector;
    scaled.ExpectBitsOfOneLaunch(GpuPanels::Axis::kColumns, 18);
  }
}

// Panels begin where blocks of rows or columns do: 18 panels of 256 lines, unless blocks end at
// other multiples.
TEST(GpuPanelsTest, OfFactorsOfBlocks) {
  struct Division {
    int64_t lines;
    int64_t count;
  };
  for (const auto [lines, count] :
       {Division{1, 18}, {96, 6}, {100, 1}, {128, 18}, {5000, 18}, {INT64_MAX, 18}}) {
    SCOPED_TRACE(lines);
    const BlockScale blocks = {.lines = lines, .depth = 128};
    Case rows("wgmma.m64n8k32.f32.e4m3.e4m3_p128", 4500, 9, 150, 1, 2);
    rows.problem.a_scale = rows.problem.b_scale = ScaleKind::kBlocks;
    rows.problem.a_blocks = blocks;
    rows.problem.b_blocks = {.type = FactorType::kUe8m0, .lines = 2, .depth = 256};
    const bool is_whole = count == 1;
    rows.ExpectBitsOfOneLaunch(is_whole ? GpuPanels::Axis::kBatch : GpuPanels::Axis::kRows, count);
    Case columns("wgmma.m64n8k32.f32.e4m3.e4m3_p128", 9, 4500, 150, 1, 2);
    columns.problem.b_scale = ScaleKind::kBlocks;
    columns.problem.b_blocks = blocks;
    columns.ExpectBitsOfOneLaunch(is_whole ? GpuPanels::Axis::kBatch : GpuPanels::Axis::kColumns,
                                  count);
  }
  Case batch("wgmma.m64n8k32.f32.e4m3.e4m3_p128", 3, 5, 140, 700, 2);
  batch.problem.a_scale = batch.problem.b_scale = ScaleKind::kBlocks;
  batch.problem.a_blocks = {.lines = 2, .depth = 128, .per_matrix = true};
  batch.problem.b_blocks = {.lines = 2, .depth = 128};
  batch.ExpectBitsOfOneLaunch(GpuPanels::Axis::kBatch, 3);
  // Where each matrix has its own, matrices are not divided.
  Case own("wgmma.m64n8k32.f32.e4m3.e4m3_p128", 4500, 9, 150, 2, 2);
  own.problem.a_scale = own.problem.b_scale = ScaleKind::kBlocks;
  own.problem.a_blocks = {.lines = 2, .depth = 128, .per_matrix = true};
  own.problem.b_blocks = {.lines = 2, .depth = 128, .per_matrix = true};
  EXPECT_EQ(DivideLaunch(own.problem, kLong).count(), 1);
  own.problem.a_blocks.per_matrix = false;
  own.ExpectBitsOfOneLaunch(GpuPanels::Axis::kRows, 18);
}

// The last of these panels has one row. A narrow kernel computes its transpose, in which the other
// operand's factors are padded more.
TEST(GpuPanelsTest, ThePanelThatNeedsMostHasRoom) {
  const Kernel* narrow = nullptr;
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    const bool is_narrow = kernel.name.find("e4m3.e4m3_p128_64x16x128") != std::string_view::npos;
    if (is_narrow) narrow = &kernel;
  }
  ASSERT_NE(narrow, nullptr);
  Case rows("wgmma.m64n8k32.f32.e4m3.e4m3_p128", 513, 9, 128, 64, 2);
  Problem& problem = rows.problem;
  problem.b_scale = ScaleKind::kBlocks;
  problem.b_blocks = {.lines = 1, .depth = 128, .per_matrix = true};
  const GpuPanels panels = {GpuPanels::Axis::kRows, 513, 256};
  const int64_t whole = narrow->workspace_bytes(problem).value();
  const int64_t last =
      narrow->workspace_bytes(ProblemOfGpuPanel(problem, panels, 2).problem).value();
  EXPECT_GT(last, whole);
  EXPECT_EQ(WorkspaceOfPanels(*narrow, problem, panels).value(), last);
}

// Nobody waits for more than a few panels, whatever the type: a panel of 2,048 columns of f64 would
// occupy an H200 for 75 ms.
TEST(GpuPanelsTest, AreAsShortAsWantedForWideTypes) {
  constexpr int64_t kSide = 32768;
  constexpr double kF64Flops = 58e12;
  Problem problem;
  problem.m = problem.n = problem.k = kSide;
  problem.a = *TightLayout("a", ElementType::kF64, Order::kRowMajor, kSide, kSide);
  problem.b = problem.d = problem.a;
  const double seconds = 2.0 * kSide * kSide * kSide / kF64Flops;
  const GpuPanels panels = DivideLaunch(problem, static_cast<int64_t>(1e9 * seconds));
  EXPECT_LE(seconds * static_cast<double>(panels.step) / kSide, 0.0135);
}

TEST(GpuPanelsTest, OfASparseAAreOverColumnsAlone) {
  Case sparse("mma.sp.m16n8k32.f32.f16.f16.f32", 4500, 9, 40, 1, 0);
  EXPECT_EQ(DivideLaunch(sparse.problem, kLong).count(), 1);
  Case wide("mma.sp.m16n8k32.f32.f16.f16.f32", 33, 4500, 40, 1, 0);
  wide.ExpectBitsOfOneLaunch(GpuPanels::Axis::kColumns, 18);
}

TEST(GpuPanelsTest, OverTheBatch) {
  Case odd("mma.m16n8k16.f32.f16.f16.f32", 3, 5, 7, 700, 0);
  odd.ExpectBitsOfOneLaunch(GpuPanels::Axis::kBatch, 3);
  Case aligned("mma.m16n8k16.f32.f16.f16.f32", 16, 16, 16, 700, 0);
  aligned.problem.a.batch_stride_bytes = 0;
  aligned.ExpectBitsOfOneLaunch(GpuPanels::Axis::kBatch, 100);
}

}  // namespace
}  // namespace gemmd
