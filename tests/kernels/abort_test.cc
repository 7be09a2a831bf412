// SPDX-License-Identifier: Apache-2.0
//
// Launches that are aborted: every row checks the flag, and long ones check it all the time.
#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <ostream>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/cpu/block_sums.h"
#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "kernels/mma/chip.h"
#include "kernels/verify/checksum.h"
#include "kernels/verify/sampled.h"
#include "tests/kernels/watched_zeros.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/timed.h"

namespace gemmd {
namespace {

// The matrix whose pages show the progress of the work: it is read or written step by step.
enum class Watched { kA, kB, kD };

// A launch with operands of zeros.
class Launched {
 public:
  Launched(const Kernel& kernel, const Problem& problem, const Target& target)
      : kernel_(kernel),
        problem_(problem),
        target_(target),
        a_(BytesOf("a", problem.a, problem.batch)->full),
        b_(BytesOf("b", problem.b, problem.batch)->full),
        d_(BytesOf("d", problem.d, problem.batch)->full),
        a_factors_(FactorBytesOf(problem.blocks_of_a(), problem.m, problem.k)),
        b_factors_(FactorBytesOf(problem.blocks_of_b(), problem.n, problem.k)),
        workspace_bytes_(*kernel.workspace_bytes(problem)),
        workspace_(workspace_bytes_) {}

  absl::Status Run(AbortFlag abort) const {
    return kernel_.launch({.problem = problem_,
                           .target = target_,
                           .a = a_.data(),
                           .b = b_.data(),
                           .c = nullptr,
                           .bias = nullptr,
                           .a_scale = {},
                           .b_scale = {},
                           .d = d_.data(),
                           .workspace = {workspace_.data(), static_cast<size_t>(workspace_bytes_)},
                           .abort = abort,
                           .a_factors = a_factors_.data(),
                           .b_factors = b_factors_.data()});
  }

  const Zeros& matrix(Watched watched) const {
    return watched == Watched::kA ? a_ : watched == Watched::kB ? b_ : d_;
  }

  // Its check, without an abort.
  verify::CheckedProduct Checked() const {
    return {.kernel = kernel_,
            .target = target_,
            .problem = problem_,
            .a = a_.bytes(),
            .b = b_.bytes(),
            .c = {},
            .bias = {},
            .a_scale = {},
            .b_scale = {},
            .d = d_.bytes(),
            .a_factors = a_factors_.bytes(),
            .b_factors = b_factors_.bytes()};
  }

 private:
  static int64_t FactorBytesOf(const BlockScale* blocks, int64_t extent, int64_t k) {
    return blocks == nullptr ? 0 : *FactorBytes("factors", *blocks, extent, k, 1);
  }

  const Kernel& kernel_;
  const Problem problem_;
  const Target target_;
  const Zeros a_;
  const Zeros b_;
  const Zeros d_;
  const Zeros a_factors_;
  const Zeros b_factors_;
  const int64_t workspace_bytes_;
  const Zeros workspace_;
};

Problem ProblemOf(const Kernel& kernel, int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
  Problem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.batch = batch;
  problem.a = *TightLayout("a", kernel.a, Order::kRowMajor, m, k);
  if (kernel.instruction != nullptr && kernel.instruction->is_sparse()) {
    problem.a = *TightSparseLayout("a", kernel.a, m, k);
  }
  problem.b = *TightLayout("b", kernel.b, Order::kRowMajor, k, n);
  problem.a.batch_stride_bytes = problem.b.batch_stride_bytes = 0;
  problem.d = *TightLayout("d", kernel.recipe.accumulation, Order::kRowMajor, m, n);
  problem.accumulation = kernel.recipe.accumulation;
  if (kernel.instruction != nullptr && kernel.instruction->bit_count == mma::BitCount::kXor) {
    problem.bit_operation = BitOperation::kXor;
  }
  if (kernel.recipe.block_scaling == BlockScaling::kParts) {
    problem.a_scale = problem.b_scale = ScaleKind::kBlocks;
    problem.a_blocks = {.lines = 1, .depth = 128};
    problem.b_blocks = {.lines = 128, .depth = 128};
  }
  return problem;
}

TEST(AbortTest, EveryRowOfTheHostLooksAtTheFlag) {
  SetThreads(1);
  std::vector<Target> targets = {HostTarget()};
  for (const mma::Chip chip : mma::kAllChips) {
    targets.push_back({.kind = DeviceKind::kSim, .chip = chip});
  }
  const std::atomic<bool> set = true;
  const std::atomic<bool> clear = false;
  for (const Target& target : targets) {
    int rows = 0;
    for (const Kernel& kernel : Catalog(target.kind)) {
      const Problem problem = ProblemOf(kernel, 3, 5, 8);
      if (!kernel.available(target).ok()) continue;
      SCOPED_TRACE(std::string(kernel.name));
      const absl::Status supported = kernel.supports(problem);
      // Simulators have rows for sparse forms of A that no problem can have.
      if (!supported.ok() && target.kind == DeviceKind::kSim) continue;
      ASSERT_THAT(supported, IsOk());
      const Launched launched(kernel, problem, target);
      EXPECT_THAT(launched.Run(&set), StatusIs(absl::StatusCode::kCancelled));
      if (rows++ % 50 == 0) {
        EXPECT_THAT(launched.Run(&clear), IsOk());
      }
    }
    EXPECT_GT(rows, 5);
  }
}

// Work that would take from a second, so that a mutant ends, to hours.
struct LongWork {
  std::string_view name;
  std::string_view kernel;
  int64_t m, n, k, batch;
  Watched watched;
  bool is_sparse = false;
  mma::Chip chip = mma::Chip::kSm90;
};

constexpr int64_t kMany = int64_t{1} << 28;
constexpr int64_t kLong = int64_t{1} << 32;

const LongWork kLongWork[] = {
    {"OneProductF32", "onednn.f32.f32.f32", 16384, 16384, 2048, 1, Watched::kD},
    {"OneProductF64", "openblas.f64.f64.f64", 8192, 8192, 1024, 1, Watched::kD},
    {"OneProductBf16", "onednn.f32.bf16.bf16", 16384, 16384, 4096, 1, Watched::kD},
    {"OneProductS8", "onednn.s32.s8.s8", 16384, 16384, 8192, 1, Watched::kD},
    {"OneProductInBlocks", "gemmd.f32.e4m3.e4m3.blocks", 16384, 16384, 128, 1, Watched::kD},
    {"BatchOfSmallInBlocks", "gemmd.f32.e4m3.e4m3.blocks", 1, 1, 1, 1 << 21, Watched::kD},
    {"WideningOfBlocks", "gemmd.f32.e4m3.e4m3.blocks", 1, 1, kLong, 1, Watched::kA},
    {"OneSum", "openblas.f64.f64.f64", 1, 1, kMany, 1, Watched::kA},
    {"Widening", "onednn.f32.e4m3.e4m3.via_f32", 1, 1, kLong, 1, Watched::kA},
    {"Expanding", "onednn.f32.f32.f32", 32768, 1, 131072, 1, Watched::kA, true},
    {"BatchOfSmallCpu", "onednn.f32.f32.f32", 1, 1, 1, kMany, Watched::kD},
    {"BatchInTurnCpu", "onednn.f32.f16.f16.via_f32", 1, 1, 1, kMany, Watched::kD},
    {"BatchOfNothingCpu", "onednn.f32.f32.f32", 1, 1, 0, kMany, Watched::kD},
    {"EpilogueAloneCpu", "onednn.f32.f32.f32", 65536, 65536, 0, 1, Watched::kD},
    {"LinesOfOneElementCpu", "onednn.f32.f32.f32", kLong, 1, 0, 1, Watched::kD},
    {"OneProductSim", "mma.m16n8k16.f32.f16.f16.f32", 4096, 4096, 4096, 1, Watched::kA},
    {"OneProductInPlainCode",
     "mma.m16n8k64.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0", 1024, 1024, 1024,
     1, Watched::kB, false, mma::Chip::kSm120},
    {"OneSumSim", "mma.m16n8k16.f32.f16.f16.f32", 1, 1, kMany, 1, Watched::kA},
    {"BatchOfSmallSim", "mma.m16n8k16.f32.f16.f16.f32", 1, 1, 1, kMany, Watched::kD},
    {"BatchOfNothingSim", "mma.m16n8k16.f32.f16.f16.f32", 1, 1, 0, kMany, Watched::kD},
    {"EpilogueAloneSim", "mma.m16n8k16.f32.f16.f16.f32", 65536, 65536, 0, 1, Watched::kD},
};

void PrintTo(const LongWork& work, std::ostream* out) { *out << work.name; }

class LongWorkTest : public testing::TestWithParam<LongWork> {};

absl::Duration TimeOf(clockid_t clock) {
  timespec now;
  EXPECT_EQ(clock_gettime(clock, &now), 0);
  return absl::DurationFromTimespec(now);
}

// The processor time that a working thread uses after its work is aborted. On free cores that is
// the time until the end; these may have other work.
absl::Duration WorkAfterAbort(const std::function<absl::Status(AbortFlag)>& run) {
  std::atomic<bool> abort = false;
  absl::Status status;
  absl::Duration end;
  absl::Notification ended;
  std::thread launcher([&] {
    SetThreads(2);
    status = run(&abort);
    end = TimeOf(CLOCK_THREAD_CPUTIME_ID);
    ended.Notify();
  });
  EXPECT_FALSE(ended.WaitForNotificationWithTimeout(absl::Milliseconds(100))) << status;
  clockid_t clock;
  EXPECT_EQ(pthread_getcpuclockid(launcher.native_handle(), &clock), 0);
  const absl::Duration aborted = TimeOf(clock);
  const absl::Time start = absl::Now();
  abort.store(true);
  launcher.join();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(kIsSanitized ? 5000 : 1000));
  return end - aborted;
}

// Other work on the machine uses caches too, so the best of a few runs counts.
void ExpectSoonAfterAbort(const std::function<absl::Status(AbortFlag)>& run) {
  const absl::Duration most = absl::Milliseconds(50);
  absl::Duration best = absl::InfiniteDuration();
  for (int i = 0; i < 5 && best > most; ++i) best = std::min(best, WorkAfterAbort(run));
  HoldsTimed("work of a thread after an abort", absl::ToDoubleMilliseconds(most),
             absl::ToDoubleMilliseconds(best), "ms");
}

// The parts of an aborted loop are skipped in at most 4096 runs (kernels/matrix/abortable_loop.h);
// there are two such loops in a row.
constexpr int64_t kMaxLooks = 10'000;

// Work that is aborted after touching a few pages of a matrix leaves most of it untouched: at most
// the part of a product that a library gets at once, or a line or a tile, is still done. It does
// not check the flag for each skipped part either.
void ExpectAbortLeavesMost(const Zeros& matrix, int64_t max_looks,
                           const std::function<absl::Status(AbortFlag)>& run) {
  constexpr int64_t kUntilAbort = 8;
  constexpr int64_t kMaxPart = 8;
  SetThreads(1);
  WatchedFlag abort;
  const PageWatch watch(matrix, kUntilAbort, abort);
  ASSERT_GE(watch.pages(), 128) << "too little work to show it";
  EXPECT_THAT(run(abort.flag()), StatusIs(absl::StatusCode::kCancelled));
  const int64_t looks = abort.TakeLooks();
  EXPECT_TRUE(IsSet(abort.flag()));
  EXPECT_LE(watch.pages_touched() - kUntilAbort, watch.pages() / kMaxPart);
  EXPECT_LE(looks, max_looks);
  testing::Test::RecordProperty("pages_touched", std::to_string(watch.pages_touched()));
  testing::Test::RecordProperty("pages", std::to_string(watch.pages()));
  testing::Test::RecordProperty("looks", std::to_string(looks));
}

void RunLongWork(const LongWork& work, bool is_timed) {
  const absl::StatusOr<const Kernel*> found = FindKernel(work.kernel);
  ASSERT_THAT(found, IsOk());
  const Kernel& kernel = **found;
  const Target target = kernel.device_kind == DeviceKind::kCpu
                            ? HostTarget()
                            : Target{.kind = DeviceKind::kSim, .chip = work.chip};
  const absl::Status available = kernel.available(target);
  if (!available.ok()) GTEST_SKIP() << available.message();
  Problem problem = ProblemOf(kernel, work.m, work.n, work.k, work.batch);
  if (work.is_sparse) problem.a = *TightSparseLayout("a", kernel.a, work.m, work.k);
  ASSERT_THAT(Validate(problem), IsOk());
  ASSERT_THAT(kernel.supports(problem), IsOk());
  const Launched launched(kernel, problem, target);
  const auto run = [&](AbortFlag abort) { return launched.Run(abort); };
  if (is_timed) {
    ExpectSoonAfterAbort(run);
  } else {
    ExpectAbortLeavesMost(launched.matrix(work.watched), kMaxLooks, run);
  }
}

TEST_P(LongWorkTest, EndsSoonAfterItIsAborted) { RunLongWork(GetParam(), false); }

class LongWorkTimed : public LongWorkTest {};
TEST_P(LongWorkTimed, EndsSoonAfterItIsAborted) { RunLongWork(GetParam(), true); }

constexpr auto kNameOf = [](const auto& param) { return std::string(param.param.name); };
INSTANTIATE_TEST_SUITE_P(Works, LongWorkTest, testing::ValuesIn(kLongWork), kNameOf);
INSTANTIATE_TEST_SUITE_P(Works, LongWorkTimed, testing::ValuesIn(kLongWork), kNameOf);

// A single sum along a long k, whose operands would take gigabytes to widen first.
void RunStrip(bool is_timed) {
  const int64_t k = kMany;
  const Zeros a(k * int64_t{sizeof(float)});
  const Zeros b(k * int64_t{sizeof(float)} * kPanelColumns);
  float totals[kStripRows][kPanelColumns];
  Strip strip = {};
  for (const float*& line : strip.a) line = reinterpret_cast<const float*>(a.data());
  strip.b = reinterpret_cast<const float*>(b.data());
  strip.k = k;
  strip.totals = totals;
  const auto run = [&](AbortFlag abort) {
    strip.abort = abort;
    while (!IsSet(abort)) SumStrip(BestBlockPath(), strip);
    return AbortedLaunch();
  };
  if (is_timed) {
    ExpectSoonAfterAbort(run);
  } else {
    ExpectAbortLeavesMost(a, kMaxLooks, run);
  }
}

TEST(AbortTest, AStripOfBlocksEndsOnItsWay) { RunStrip(false); }
TEST(AbortTimed, AStripOfBlocksEndsOnItsWay) { RunStrip(true); }

// Checks of zeros that would take many seconds. D need not be right: sums are compared at the end,
// and so are the elements that are computed again together.
struct LongCheck {
  std::string_view name;
  std::string_view kernel;
  int64_t m, n, k;
  bool is_of_sums;
  bool looks_at_each_term = false;
};

const LongCheck kLongChecks[] = {
    {"SumsOfFloats", "onednn.f32.f32.f32", 65536, 65536, 65536, true},
    {"SumsOfIntegers", "onednn.s32.s8.s8", 65536, 65536, 65536, true},
    {"ElementsWithinBounds", "openblas.f64.f64.f64", 4096, 4096, 1 << 13, false, true},
    {"ElementsOfIntegers", "onednn.s32.s8.s8", 8192, 8192, 1 << 14, false},
    {"ElementsOfBlocks", "gemmd.f32.e4m3.e4m3.blocks", 4096, 4096, 1 << 13, false},
    {"ElementsOfTheSimulator", "mma.m16n8k16.f32.f16.f16.f32", 8192, 8192, 1 << 13, false},
};

void PrintTo(const LongCheck& check, std::ostream* out) { *out << check.name; }

class LongCheckTest : public testing::TestWithParam<LongCheck> {};

struct CheckRun {
  const LongCheck& check;
  const Launched& launched;

  absl::Status operator()(AbortFlag abort) const {
    verify::CheckedProduct product = launched.Checked();
    product.abort = abort;
    verify::Draw draw(1);
    return check.is_of_sums ? verify::CheckSums(product, draw).status()
                            : verify::CheckSample(product, 1, draw).status();
  }
};

// Elements are computed in the check's own memory, where no page shows its progress: one look for
// each term. Sums are done in slices that take less than a page shows: one look for each line.
void ExpectLooksOften(const LongCheck& check, const Kernel& kernel, const Target& target) {
  constexpr int64_t kExtent = 8;
  constexpr int64_t kDepth = 64;
  const Launched launched(kernel, ProblemOf(kernel, kExtent, kExtent, kDepth), target);
  WatchedFlag abort;
  abort.CountLooks();
  const CheckRun run = {check, launched};
  EXPECT_THAT(run(abort.flag()), IsOk());
  EXPECT_GE(abort.TakeLooks(),
            check.is_of_sums ? kDepth + 2 * kExtent : kExtent * kExtent * kDepth);
}

void RunLongCheck(const LongCheck& check, bool is_timed) {
  const absl::StatusOr<const Kernel*> found = FindKernel(check.kernel);
  ASSERT_THAT(found, IsOk());
  const Kernel& kernel = **found;
  const Target target = kernel.device_kind == DeviceKind::kCpu
                            ? HostTarget()
                            : Target{.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90};
  const Launched launched(kernel, ProblemOf(kernel, check.m, check.n, check.k), target);
  const CheckRun run = {check, launched};
  if (is_timed) {
    ExpectSoonAfterAbort(run);
    return;
  }
  // One for each element of the 256 x 256 that are computed together.
  constexpr int64_t kMaxLooksOfCheck = 256 * 256 + kMaxLooks;
  static_assert(kMaxLooksOfCheck < WatchedFlag::kMaxLooks);
  ExpectAbortLeavesMost(launched.matrix(check.is_of_sums ? Watched::kB : Watched::kA),
                        kMaxLooksOfCheck, run);
  if (check.is_of_sums || check.looks_at_each_term) ExpectLooksOften(check, kernel, target);
}

TEST_P(LongCheckTest, EndsSoonAfterItIsAborted) { RunLongCheck(GetParam(), false); }

class LongCheckTimed : public LongCheckTest {};
TEST_P(LongCheckTimed, EndsSoonAfterItIsAborted) { RunLongCheck(GetParam(), true); }

INSTANTIATE_TEST_SUITE_P(Checks, LongCheckTest, testing::ValuesIn(kLongChecks), kNameOf);
INSTANTIATE_TEST_SUITE_P(Checks, LongCheckTimed, testing::ValuesIn(kLongChecks), kNameOf);

}  // namespace
}  // namespace gemmd
