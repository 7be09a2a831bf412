// SPDX-License-Identifier: Apache-2.0
//
// Aborted launches: they end soon, at whatever moment they are aborted.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/weights.h"
#include "kernels/kernel.h"
#include "tests/gpu/cuda_runner.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/product.h"

namespace gemmd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kJob = 77;

double MsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// A word of the host's memory that kernels read.
class PinnedWord {
 public:
  PinnedWord() {
    void* data = nullptr;
    ExpectDone(CudaStatus(cudaMallocHost(&data, sizeof(uint64_t)), "word"));
    word_ = static_cast<uint64_t*>(data);
    Set(0);
  }
  PinnedWord(const PinnedWord&) = delete;
  PinnedWord& operator=(const PinnedWord&) = delete;
  ~PinnedWord() { cudaFreeHost(word_); }

  void Set(uint64_t value) { *static_cast<volatile uint64_t*>(word_) = value; }
  AbortWord abort() const { return {.word = word_, .value = kJob}; }

 private:
  uint64_t* word_ = nullptr;
};

// A kernel, and a product for it whose operands are zero.
class ZeroProduct {
 public:
  ZeroProduct(const Kernel& kernel, const Target& target, const Problem& problem)
      : kernel_(kernel), target_(target), problem_(problem) {
    a_ = Zeros(problem.a.batch_stride_bytes);
    b_ = Zeros(problem.b.batch_stride_bytes);
    d_ = Zeros(problem.d.batch_stride_bytes);
    const absl::StatusOr<int64_t> bytes = kernel.workspace_bytes(problem);
    ExpectDone(bytes.status());
    workspace_ = Zeros(bytes.value_or(0));
  }

  void Launch(const AbortWord& abort) const {
    const GemmArgs args = {
        .problem = problem_,
        .target = target_,
        .a = a_.data(),
        .b = b_.data(),
        .c = nullptr,
        .bias = nullptr,
        .a_scale = {},
        .b_scale = {},
        .d = d_.data(),
        .workspace = {workspace_.data(), static_cast<size_t>(workspace_.bytes())},
        .abort_word = abort};
    ExpectDone(LaunchOnStream(kernel_, args, stream_.get()));
  }
  void Wait() const { ExpectDone(stream_.Wait()); }

 private:
  static DeviceBuffer Zeros(int64_t bytes) {
    absl::StatusOr<DeviceBuffer> memory = DeviceBuffer::Allocate(bytes);
    ExpectDone(memory.status());
    if (!memory.ok()) return {};
    ExpectDone(CudaStatus(cudaMemset(memory->data(), 0, static_cast<size_t>(bytes)), "memset"));
    ExpectDone(CudaStatus(cudaDeviceSynchronize(), "memset"));
    return *std::move(memory);
  }

  const Kernel& kernel_;
  const Target target_;
  const Problem problem_;
  const Stream stream_ = MakeStream();
  DeviceBuffer a_;
  DeviceBuffer b_;
  DeviceBuffer d_;
  DeviceBuffer workspace_;
};

Problem ProblemFor(const Kernel& kernel, int64_t m, int64_t n, int64_t k) {
  Problem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.accumulation = kernel.recipe.accumulation;
  if (kernel.instruction->bit_count == mma::BitCount::kXor) {
    problem.bit_operation = BitOperation::kXor;
  }
  problem.a = kernel.instruction->is_sparse()
                  ? TightSparseLayout("a", kernel.a, m, k).value()
                  : SpacedLayout(kernel.a, Order::kRowMajor, m, k, Spacing::kAligned);
  problem.b = SpacedLayout(kernel.b, Order::kColumnMajor, k, n, Spacing::kAligned);
  problem.d = SpacedLayout(kernel.instruction->d, Order::kRowMajor, m, n, Spacing::kAligned);
  return problem;
}

// The product with weights of s4 on its longer side, if the row dequantizes them in registers.
std::optional<Problem> WithWeights(const Kernel& kernel, Problem problem) {
  const bool is_a = problem.m >= problem.n;
  MatrixLayout& weights = is_a ? problem.a : problem.b;
  weights = SpacedLayout(ElementType::kS4, weights.order, weights.rows, weights.columns,
                         Spacing::kAligned);
  const bool is_taken = WeightsMultiplicationOf(*CudaRowOf(kernel), problem).has_value();
  return is_taken ? std::optional(problem) : std::nullopt;
}

class AbortOnGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    const absl::StatusOr<CudaGpu> gpu = FindCudaGpu();
    ExpectDone(gpu.status());
    if (!gpu.ok()) return;
    target_ = {.kind = DeviceKind::kCuda, .chip = gpu->chip};
    cudaDeviceProp properties;
    ExpectDone(CudaStatus(cudaGetDeviceProperties(&properties, 0), "properties"));
    target_.multiprocessors = properties.multiProcessorCount;
  }
  Target target_;
};

// Kernels look for an abort well within 50 ms, whatever the row, and an aborted launch ends at the
// first look.
TEST_F(AbortOnGpuTest, EveryRowEndsAtItsFirstLook) {
  constexpr int kLooks = 8;
  double slowest = 0;
  std::string slowest_name;
  int rows = 0;
  struct Case {
    const Kernel& kernel;
    Problem problem;
  };
  std::vector<Case> cases;
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    if (!HasCode(kernel)) continue;
    const int64_t k = int64_t{kLooks} * kTilesBetweenLooks * CudaRowOf(kernel)->tile.k;
    const Problem problem = ProblemFor(kernel, 3, 5, k);
    cases.push_back({kernel, problem});
    if (const std::optional<Problem> other = WithWeights(kernel, problem)) {
      cases.push_back({kernel, *other});
    }
  }
  for (const auto& [kernel, problem] : cases) {
    const ZeroProduct product(kernel, target_, problem);
    PinnedWord word;
    const auto time = [&](uint64_t value) {
      word.Set(value);
      double best = 1e9;
      for (int round = 0; round < 3; ++round) {
        const Clock::time_point start = Clock::now();
        product.Launch(word.abort());
        product.Wait();
        best = std::min(best, MsSince(start));
      }
      return best;
    };
    const double whole = time(kJob + 1);
    const double aborted = time(kJob);
    EXPECT_LE(aborted, whole / kLooks * 2 + 0.5) << kernel.name << ": whole " << whole << " ms";
    ++rows;
    if (aborted > slowest) {
      slowest = aborted;
      slowest_name = kernel.name;
    }
    if (HasFailure()) return;  // The first of many rows is enough.
  }
  std::printf("%d rows; the slowest ends after %.2f ms: %s\n", rows, slowest, slowest_name.c_str());
  EXPECT_GT(rows, 0);
  EXPECT_LE(slowest, 40);
}

// Rows of each kind with several tiles of D per block, so that the abort may come at any of them.
TEST_F(AbortOnGpuTest, AtAnyMoment) {
  std::vector<const Kernel*> kinds;
  const auto is_new = [&](const CudaRow& row) {
    return std::none_of(kinds.begin(), kinds.end(), [&](const Kernel* kind) {
      const CudaRow& other = *CudaRowOf(*kind);
      return other.pipeline == row.pipeline && other.cluster == row.cluster &&
             IsNarrow(other) == IsNarrow(row) && IsTiny(other) == IsTiny(row);
    });
  };
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    if (!HasCode(kernel) || kernel.instruction->is_sparse() || BitsOf(kernel.a) != 16) continue;
    if (is_new(*CudaRowOf(kernel))) kinds.push_back(&kernel);
  }
  EXPECT_GE(kinds.size(), 3u);
  std::vector<std::pair<const Kernel*, Problem>> cases;
  for (const Kernel* const kernel : kinds) {
    const CudaRow& row = *CudaRowOf(*kernel);
    constexpr int kAcross = 17;
    const int64_t k = (2 * kTilesBetweenLooks + 500) * int64_t{row.tile.k};
    const Problem problem =
        ProblemFor(*kernel, kAcross * int64_t{row.tile.m}, kAcross * int64_t{row.tile.n}, k);
    cases.emplace_back(kernel, problem);
    if (const std::optional<Problem> other = WithWeights(*kernel, problem)) {
      cases.emplace_back(kernel, *other);
    }
  }
  EXPECT_GT(cases.size(), kinds.size());  // The narrow row has weights.
  for (const auto& [kernel, problem] : cases) {
    const ZeroProduct product(*kernel, target_, problem);
    PinnedWord word;
    const Clock::time_point start = Clock::now();
    product.Launch(word.abort());
    product.Wait();
    const double whole = MsSince(start);
    double worst = 0;
    constexpr int kMoments = 40;
    for (int moment = 0; moment < kMoments; ++moment) {
      word.Set(0);
      product.Launch(word.abort());
      std::this_thread::sleep_for(
          std::chrono::duration<double, std::milli>(whole * moment / kMoments));
      const Clock::time_point aborted = Clock::now();
      word.Set(kJob);
      product.Wait();
      worst = std::max(worst, MsSince(aborted));
    }
    std::printf("%s: whole %.2f ms, aborted %.2f ms at most\n", std::string(kernel->name).c_str(),
                whole, worst);
    EXPECT_LE(worst, 20) << kernel->name;
  }
}

}  // namespace
}  // namespace gemmd
