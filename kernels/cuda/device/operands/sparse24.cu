// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/operands/sparse24.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/sparse_groups.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

constexpr int kWarpLanes = 32;
constexpr int kWarps = kBlockThreads / kWarpLanes;
constexpr unsigned kAllLanes = 0xffff'ffff;

// Calls visit(row, piece) for each piece of a row that falls to this thread.
template <typename Visit>
__device__ void ForPieces(int64_t rows, int64_t pieces_of_row, const Visit& visit) {
  const int64_t stride = int64_t{gridDim.x} * kBlockThreads;
  for (int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < rows * pieces_of_row;
       i += stride) {
    visit(i / pieces_of_row, i % pieces_of_row);
  }
}

// Adds up what all threads counted.
__device__ void AddCount(int count, int64_t* total) {
  const int sum = __reduce_add_sync(kAllLanes, count);
  if (threadIdx.x % kWarpLanes != 0 || sum == 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(total), static_cast<unsigned long long>(sum));
}

__device__ void NoteBad(BadGroup bad, BadGroup* first) {
  if (bad == kNoBadGroup) return;
  atomicMin(reinterpret_cast<unsigned long long*>(first), static_cast<unsigned long long>(bad));
}

template <typename Form>
__global__ void __launch_bounds__(kBlockThreads)
    PruneKernel(const __grid_constant__ SparseJob job, int64_t* cleared) {
  int count = 0;
  ForPieces(job.layout.rows, job.layout.groups,
            [&](int64_t row, int64_t group) { count += PruneGroup<Form>(job, row, group); });
  AddCount(count, cleared);
}

__constant__ const auto kPatternsOfFour = MakeTilePatterns<4>();
__constant__ const auto kPatternsOfTwo = MakeTilePatterns<2>();

template <typename Form>
__device__ TilePattern PatternAt(int index) {
  if constexpr (Form::kGroupUnits == 4) {
    return kPatternsOfFour[index];
  } else {
    return kPatternsOfTwo[index];
  }
}

// Returns the best of all lanes' choices.
__device__ int BestPattern(Choice choice) {
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    Choice other;
    other.magnitude.specials = __shfl_xor_sync(kAllLanes, choice.magnitude.specials, distance);
    other.magnitude.finite = __shfl_xor_sync(kAllLanes, choice.magnitude.finite, distance);
    other.pattern = __shfl_xor_sync(kAllLanes, choice.pattern, distance);
    if (other.IsBetterThan(choice)) choice = other;
  }
  return choice.pattern;
}

// The blocks of PruneBothWaysKernel that share a multiprocessor: without this bound, ptxas for
// sm_120 makes room for more and spills.
constexpr int kBlocksOfPruning = 4;

// A warp chooses for one tile at a time: each lane weighs some of the patterns.
template <typename Form>
__global__ void __launch_bounds__(kBlockThreads, kBlocksOfPruning)
    PruneBothWaysKernel(const __grid_constant__ SparseJob job, int64_t row_tiles,
                        int64_t* cleared) {
  constexpr int kSquares = Form::kGroupUnits * Form::kGroupUnits;
  constexpr int kPatterns = kTilePatterns<Form::kGroupUnits>;
  __shared__ Magnitude squares[kWarps][kSquares];
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int lines = Form::kGroupUnits * static_cast<int>(job.layout.form.unit);
  int count = 0;
  for (int64_t index = int64_t{blockIdx.x} * kWarps + warp; index < row_tiles * job.layout.groups;
       index += int64_t{gridDim.x} * kWarps) {
    const int64_t tile = index / job.layout.groups;
    const int64_t group = index % job.layout.groups;
    if (lane < kSquares) {
      squares[warp][lane] = MagnitudeOfSquare<Form>(job, tile, group, lane / Form::kGroupUnits,
                                                    lane % Form::kGroupUnits);
    }
    __syncwarp();
    // Lanes without a pattern weigh the last one again.
    Choice choice;
    choice.pattern = min(lane, kPatterns - 1);
    choice.magnitude = MagnitudeOfPattern<Form>(squares[warp], PatternAt<Form>(choice.pattern));
    for (int i = lane + kWarpLanes; i < kPatterns; i += kWarpLanes) {
      const Choice other = {MagnitudeOfPattern<Form>(squares[warp], PatternAt<Form>(i)), i};
      if (other.IsBetterThan(choice)) choice = other;
    }
    const TilePattern pattern = PatternAt<Form>(BestPattern(choice));
    if (lane < lines) count += KeepLineOfTile<Form>(job, tile, group, lane, pattern);
    __syncwarp();
  }
  AddCount(count, cleared);
}

template <typename Form>
__global__ void __launch_bounds__(kBlockThreads)
    CheckPrunedKernel(const __grid_constant__ SparseJob job, BadGroup* bad) {
  ForPieces(job.layout.rows, job.layout.groups, [&](int64_t row, int64_t group) {
    const uint32_t fault = PrunedFault<Form>(job, row, group);
    if (fault != 0) NoteBad(MakeBadGroup(row * job.layout.groups + group, fault), bad);
  });
}

template <typename Form>
__global__ void __launch_bounds__(kBlockThreads)
    CheckCompressedKernel(const __grid_constant__ SparseJob job, BadGroup* bad) {
  ForPieces(job.layout.rows, job.layout.groups, [&](int64_t row, int64_t group) {
    const uint32_t fault = CompressedFault<Form>(job, row, group);
    if (fault != 0) NoteBad(MakeBadGroup(row * job.layout.groups + group, fault), bad);
  });
}

template <typename Form>
__global__ void __launch_bounds__(kBlockThreads)
    CompressKernel(const __grid_constant__ SparseJob job, BadGroup* bad) {
  ForPieces(job.layout.rows, job.layout.index_line_bytes,
            [&](int64_t row, int64_t span) { NoteBad(CompressSpan<Form>(job, row, span), bad); });
}

template <typename Form>
__global__ void __launch_bounds__(kBlockThreads)
    CompressViewKernel(const __grid_constant__ CompressView view, BadGroup* bad) {
  ForPieces(view.end_line - view.first_line, view.layout.index_line_bytes,
            [&](int64_t line, int64_t span) {
              NoteBad(CompressSpanOfView<Form>(view, view.first_line + line, span), bad);
            });
}

template <typename Form>
__global__ void __launch_bounds__(kBlockThreads)
    ExpandKernel(const __grid_constant__ SparseJob job) {
  ForPieces(job.layout.rows, job.layout.groups,
            [&](int64_t row, int64_t group) { ExpandGroup<Form>(job, row, group); });
}

// Jobs hold non-const pointers, but kernels do not write to inputs.
std::byte* Unconst(const std::byte* bytes) { return const_cast<std::byte*>(bytes); }

bool IsEmpty(const SparseLayout& layout) { return layout.rows == 0 || layout.columns == 0; }

unsigned BlocksOfGroups(const SparseLayout& layout) {
  return BlocksOfThreads(layout.rows * layout.groups);
}

absl::Status SetBytes(void* target, int byte, size_t size, CUstream_st* stream) {
  return CudaStatus(cudaMemsetAsync(target, byte, size, stream), "sparse24");
}

}  // namespace

absl::Status PruneOnStream(const SparseLayout& layout, std::byte* dense, int64_t* cleared,
                           CUstream_st* stream) {
  RETURN_IF_ERROR(SetBytes(cleared, 0, sizeof(*cleared), stream));
  if (IsEmpty(layout)) return absl::OkStatus();
  const SparseJob job = SparseJobOf(layout, dense, nullptr);
  WithGroupForm(layout, [&]<typename Form>(Form) {
    PruneKernel<Form><<<BlocksOfGroups(layout), kBlockThreads, 0, stream>>>(job, cleared);
  });
  return LaunchStatus("prune");
}

absl::Status PruneBothWaysOnStream(const SparseLayout& layout, std::byte* dense, int64_t* cleared,
                                   CUstream_st* stream) {
  RETURN_IF_ERROR(SetBytes(cleared, 0, sizeof(*cleared), stream));
  if (IsEmpty(layout)) return absl::OkStatus();
  const SparseJob job = SparseJobOf(layout, dense, nullptr);
  const int64_t size = layout.form.group();
  const int64_t row_tiles = layout.rows / size + (layout.rows % size != 0 ? 1 : 0);
  const unsigned blocks = BlocksFor((row_tiles * layout.groups + kWarps - 1) / kWarps);
  WithGroupForm(layout, [&]<typename Form>(Form) {
    PruneBothWaysKernel<Form><<<blocks, kBlockThreads, 0, stream>>>(job, row_tiles, cleared);
  });
  return LaunchStatus("prune both ways");
}

absl::Status CheckPrunedOnStream(const SparseLayout& layout, const std::byte* dense, BadGroup* bad,
                                 CUstream_st* stream) {
  RETURN_IF_ERROR(SetBytes(bad, 0xff, sizeof(*bad), stream));
  if (IsEmpty(layout)) return absl::OkStatus();
  const SparseJob job = SparseJobOf(layout, Unconst(dense), nullptr);
  WithGroupForm(layout, [&]<typename Form>(Form) {
    CheckPrunedKernel<Form><<<BlocksOfGroups(layout), kBlockThreads, 0, stream>>>(job, bad);
  });
  return LaunchStatus("check pruned");
}

absl::Status CheckCompressedOnStream(const SparseLayout& layout, const std::byte* compressed,
                                     BadGroup* bad, CUstream_st* stream) {
  RETURN_IF_ERROR(SetBytes(bad, 0xff, sizeof(*bad), stream));
  if (IsEmpty(layout)) return absl::OkStatus();
  const SparseJob job = SparseJobOf(layout, nullptr, Unconst(compressed));
  WithGroupForm(layout, [&]<typename Form>(Form) {
    CheckCompressedKernel<Form><<<BlocksOfGroups(layout), kBlockThreads, 0, stream>>>(job, bad);
  });
  return LaunchStatus("check compressed");
}

absl::Status CompressOnStream(const SparseLayout& layout, const std::byte* dense,
                              std::byte* compressed, BadGroup* bad, CUstream_st* stream) {
  RETURN_IF_ERROR(SetBytes(bad, 0xff, sizeof(*bad), stream));
  if (IsEmpty(layout)) return absl::OkStatus();
  const SparseJob job = SparseJobOf(layout, Unconst(dense), compressed);
  const unsigned blocks = BlocksOfThreads(layout.rows * layout.index_line_bytes);
  WithGroupForm(layout, [&]<typename Form>(Form) {
    CompressKernel<Form><<<blocks, kBlockThreads, 0, stream>>>(job, bad);
  });
  return LaunchStatus("compress");
}

absl::Status CompressViewOnStream(const CompressView& view, BadGroup* bad, CUstream_st* stream) {
  RETURN_IF_ERROR(SetBytes(bad, 0xff, sizeof(*bad), stream));
  const int64_t spans = (view.end_line - view.first_line) * view.layout.index_line_bytes;
  if (spans <= 0) return absl::OkStatus();
  WithGroupForm(view.layout, [&]<typename Form>(Form) {
    CompressViewKernel<Form><<<BlocksOfThreads(spans), kBlockThreads, 0, stream>>>(view, bad);
  });
  return LaunchStatus("compress a view");
}

absl::Status ExpandOnStream(const SparseLayout& layout, const std::byte* compressed,
                            std::byte* dense, CUstream_st* stream) {
  if (IsEmpty(layout)) return absl::OkStatus();
  const SparseJob job = SparseJobOf(layout, dense, Unconst(compressed));
  WithGroupForm(layout, [&]<typename Form>(Form) {
    ExpandKernel<Form><<<BlocksOfGroups(layout), kBlockThreads, 0, stream>>>(job);
  });
  return LaunchStatus("expand");
}

}  // namespace gemmd
