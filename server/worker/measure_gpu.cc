// SPDX-License-Identifier: Apache-2.0
#include "server/worker/measure_gpu.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>

#include "kernels/catalog.h"
#include "kernels/status_macros.h"
#include "server/crossing/job_layout.h"
#include "server/worker/device_arena.h"

namespace gemmd {
namespace {

constexpr int kRuns = 3;
constexpr std::chrono::seconds kTimeForKernels(3);
constexpr int64_t kMostCopiedBytes = int64_t{64} << 20;
constexpr int64_t kArenaBytes = int64_t{256} << 20;  // More than a cache holds, and than a sample.

constexpr Lane kLane = Lane::kCompute;
constexpr Moment kStart = 0;
constexpr Moment kEnd = 1;

// How long the shortest of some runs takes of what `start` puts under way.
template <typename Start>
absl::StatusOr<double> ShortestSeconds(GpuRuntime& runtime, const Start& start) {
  int64_t shortest_ns = std::numeric_limits<int64_t>::max();
  for (int run = 0; run <= kRuns; ++run) {
    RETURN_IF_ERROR(runtime.Mark(kLane, kStart));
    RETURN_IF_ERROR(start());
    RETURN_IF_ERROR(runtime.Mark(kLane, kEnd));
    RETURN_IF_ERROR(runtime.Wait());
    ASSIGN_OR_RETURN(const int64_t ns, runtime.NanosecondsBetween(kStart, kEnd));
    // The first run loads code.
    if (run > 0) shortest_ns = std::min(shortest_ns, ns);
  }
  return static_cast<double>(std::max(shortest_ns, int64_t{1})) * 1e-9;
}

// The operands are what the range holds: random bits, which cost what any data do.
absl::StatusOr<double> KernelRate(const Kernel& kernel, const GpuDescription& gpu,
                                  GpuRuntime& runtime, const DeviceArena::Range& range) {
  ASSIGN_OR_RETURN(const Problem problem, kernel.sample(gpu.target));
  RETURN_IF_ERROR(kernel.supports(problem));
  ASSIGN_OR_RETURN(const JobLayout layout, LayOutJob(problem));
  ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel.workspace_bytes(problem));
  if (workspace_bytes > range.bytes - layout.end) {
    return absl::ResourceExhaustedError("the sample does not fit");
  }
  const GemmArgs args =
      ArgsAt(problem, gpu.target, layout, range.memory,
             absl::MakeSpan(range.memory + layout.end, static_cast<size_t>(workspace_bytes)));
  ASSIGN_OR_RETURN(const double seconds,
                   ShortestSeconds(runtime, [&] { return runtime.Launch(kernel, args); }));
  return static_cast<double>(Operations(problem)) / seconds;
}

void FillWithRandomBits(absl::Span<std::byte> memory) {
  std::mt19937_64 random(1);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
}

absl::Status MeasureMemory(GpuRuntime& runtime, std::byte* block, absl::Span<std::byte> staging,
                           GpuRates& rates) {
  const auto copied = staging.first(std::min(staging.size(), size_t{kMostCopiedBytes}));
  FillWithRandomBits(copied);
  const double bytes = static_cast<double>(copied.size());
  ASSIGN_OR_RETURN(const double clearing, ShortestSeconds(runtime, [&] {
                     return runtime.Clear(kLane, block, kArenaBytes);
                   }));
  rates.memory_bytes_per_second = static_cast<double>(kArenaBytes) / clearing;
  ASSIGN_OR_RETURN(const double copying,
                   ShortestSeconds(runtime, [&] { return runtime.CopyIn(kLane, block, copied); }));
  rates.copied_bytes_per_second = bytes / copying;
  // What the samples will find.
  const auto step = static_cast<int64_t>(copied.size());
  for (int64_t offset = 0; offset + step <= kArenaBytes; offset += step) {
    RETURN_IF_ERROR(runtime.CopyIn(kLane, block + offset, copied));
  }
  return runtime.Wait();
}

}  // namespace

absl::Status MeasureGpuRates(GpuRuntime& runtime, const GpuDescription& gpu,
                             absl::Span<std::byte> staging, GpuRates& rates) {
  DeviceArena arena(runtime, gpu.free_memory_bytes);
  ASSIGN_OR_RETURN(const DeviceArena::Range range, arena.Reserve(kArenaBytes));
  RETURN_IF_ERROR(MeasureMemory(runtime, range.memory, staging, rates));
  const absl::Span<const Kernel> kernels = Catalog(DeviceKind::kCuda);
  rates.kernel_rates.assign(kernels.size(), 0);
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (!kernels[i].available(gpu.target).ok()) continue;
    if (std::chrono::steady_clock::now() - start > kTimeForKernels) break;
    const absl::StatusOr<double> rate = KernelRate(kernels[i], gpu, runtime, range);
    if (!rate.ok() && runtime.IsLost()) return rate.status();
    rates.kernel_rates[i] = rate.ok() ? *rate : 0;
  }
  return absl::OkStatus();
}

}  // namespace gemmd
