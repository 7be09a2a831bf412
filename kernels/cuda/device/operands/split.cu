// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/epilogue/epilogue.cuh"
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/operands/split.h"
#include "kernels/cuda/operands/pack_jobs.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

constexpr int kElementBytes = sizeof(float);
constexpr int kElementsOfChunk = kChunkBytes / kElementBytes;
constexpr unsigned kAllLanes = 0xffff'ffff;
constexpr int kWarps = kBlockThreads / 32;

struct SplitJob {
  PackJob pack;  // Its target is the high part.
  MagnitudeRange* ranges = nullptr;
  int64_t ranges_of_matrix = 0;
  int64_t part_bytes = 0;  // From the high part to the low one.
};

struct DeviceF16 {
  static __device__ __forceinline__ uint32_t Encode(float x) {
    return ptx::NarrowPair<ElementType::kF16>(x, 0);
  }
  static __device__ __forceinline__ float Decode(uint32_t code) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<uint16_t>(code)));
    return value;
  }
};

__device__ __forceinline__ uint32_t BitsAt(const Chunk& chunk, int element) {
  const uint64_t half = element < 2 ? chunk.low : chunk.high;
  return static_cast<uint32_t>(element % 2 == 0 ? half : half >> 32);
}

// The f16 bits of neighbouring elements.
template <typename Conversions>
struct Parts {
  uint64_t high = 0;
  uint64_t low = 0;

  __device__ __forceinline__ void Append(int place, uint32_t bits, float scale) {
    const SplitElement element = SplitOf<Conversions>(__uint_as_float(bits), scale);
    high |= static_cast<uint64_t>(element.high) << 16 * place;
    low |= static_cast<uint64_t>(element.low) << 16 * place;
  }
};

__device__ __forceinline__ MagnitudeRange RangeOf(const Chunk& chunk) {
  MagnitudeRange range;
  for (int e = 0; e < kElementsOfChunk; ++e) range.Include(MagnitudeRange::Of(BitsAt(chunk, e)));
  return range;
}

__device__ __forceinline__ MagnitudeRange RangeOfWarp(const MagnitudeRange& range) {
  return {__reduce_max_sync(kAllLanes, range.largest),
          __reduce_max_sync(kAllLanes, range.smallest)};
}

__device__ __forceinline__ Chunk ChunkOfLine(const PackJob& job, const std::byte* line,
                                             int64_t chunk) {
  const int64_t bytes = job.length * kElementBytes - chunk * kChunkBytes;
  return LoadChunk(line + chunk * kChunkBytes, bytes, job.source_end);
}

// If source lines run along the target's, a block splits one line. Its threads keep up to 8,192
// elements in registers, and read the rest of a longer line twice.
__global__ void __launch_bounds__(kBlockThreads)
    SplitLinesKernel(const __grid_constant__ SplitJob job) {
  constexpr int kKept = 8;
  __shared__ MagnitudeRange of_warps[kWarps];
  const PackJob& pack = job.pack;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t chunks = pack.target_line_stride / (kElementsOfChunk * 2);
  for (int64_t index = blockIdx.x; index < pack.lines * pack.batch; index += gridDim.x) {
    const int64_t matrix = index / pack.lines;
    const int64_t line = index % pack.lines;
    const std::byte* const source =
        pack.source + matrix * pack.source_batch_stride + line * pack.source_line_stride;
    Chunk kept[kKept];
    MagnitudeRange range;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      kept[i] = ChunkOfLine(pack, source, thread + i * kBlockThreads);
      range.Include(RangeOf(kept[i]));
    }
    for (int64_t i = thread + kKept * kBlockThreads; i < chunks; i += kBlockThreads) {
      range.Include(RangeOf(ChunkOfLine(pack, source, i)));
    }
    range = RangeOfWarp(range);
    __syncthreads();  // The previous line has been read.
    if (thread % 32 == 0) of_warps[thread / 32] = range;
    __syncthreads();
    for (int i = 0; i < kWarps; ++i) range.Include(of_warps[i]);
    if (thread == 0) job.ranges[matrix * job.ranges_of_matrix + line] = range;
    const float scale = SplitLineOf(range).scale();
    std::byte* const target =
        pack.target + matrix * pack.target_batch_stride + line * pack.target_line_stride;
    const auto store = [&](int64_t chunk, const Chunk& elements) {
      Parts<DeviceF16> parts;
      for (int e = 0; e < kElementsOfChunk; ++e) parts.Append(e, BitsAt(elements, e), scale);
      std::byte* const place = target + chunk * (kElementsOfChunk * 2);
      *reinterpret_cast<uint64_t*>(place) = parts.high;
      *reinterpret_cast<uint64_t*>(place + job.part_bytes) = parts.low;
    };
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (thread + i * kBlockThreads < chunks) store(thread + i * kBlockThreads, kept[i]);
    }
    for (int64_t i = thread + kKept * kBlockThreads; i < chunks; i += kBlockThreads) {
      store(i, ChunkOfLine(pack, source, i));
    }
  }
}

// If source lines run across the target's, the ranges are computed first. A warp reads 128
// neighbouring lines' elements of one k at a time, and a block those of kDepth.
constexpr int kLinesOfPiece = 32 * kElementsOfChunk;
constexpr int kDepth = 128;

__global__ void __launch_bounds__(kBlockThreads)
    RangesKernel(const __grid_constant__ SplitJob job, int64_t pieces_of_line,
                 int64_t pieces_of_matrix, int64_t pieces) {
  __shared__ MagnitudeRange of_warps[kWarps][kLinesOfPiece];
  const PackJob& pack = job.pack;
  const int thread = static_cast<int>(threadIdx.x);
  const int first_of_thread = thread % 32 * kElementsOfChunk;
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const int64_t matrix = piece / pieces_of_matrix;
    const int64_t in_matrix = piece % pieces_of_matrix;
    const int64_t first_line = in_matrix / pieces_of_line * kLinesOfPiece;
    const int64_t first_k = in_matrix % pieces_of_line * kDepth;
    const int64_t end_k = min(first_k + kDepth, pack.length);
    const int64_t bytes = (pack.lines - first_line - first_of_thread) * kElementBytes;
    const std::byte* const source = pack.source + matrix * pack.source_batch_stride +
                                    (first_line + first_of_thread) * kElementBytes;
    MagnitudeRange ranges[kElementsOfChunk];
    for (int64_t k = first_k + thread / 32; k < end_k; k += kWarps) {
      const Chunk chunk = LoadChunk(source + k * pack.source_line_stride, bytes, pack.source_end);
      for (int e = 0; e < kElementsOfChunk; ++e) {
        ranges[e].Include(MagnitudeRange::Of(BitsAt(chunk, e)));
      }
    }
    for (int e = 0; e < kElementsOfChunk; ++e) {
      of_warps[thread / 32][first_of_thread + e] = ranges[e];
    }
    __syncthreads();
    if (thread < kLinesOfPiece && first_line + thread < pack.lines) {
      MagnitudeRange range;
      for (int i = 0; i < kWarps; ++i) range.Include(of_warps[i][thread]);
      MagnitudeRange* const of_line =
          job.ranges + matrix * job.ranges_of_matrix + first_line + thread;
      atomicMax(&of_line->largest, range.largest);
      atomicMax(&of_line->smallest, range.smallest);
    }
    __syncthreads();
  }
}

using Form = PackForm<32, 32>;

__global__ void __launch_bounds__(kBlockThreads)
    SplitTilesKernel(const __grid_constant__ SplitJob job, int64_t tiles_of_line,
                     int64_t tiles_of_matrix, int64_t tiles) {
  __shared__ alignas(16) Form::Word staged[Form::kTile * Form::kStride];
  constexpr int kChunk = kChunkBytes / 2;  // Elements of a chunk of the target.
  constexpr int kChunks = Form::kTile / kChunk;
  const PackJob& pack = job.pack;
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const int64_t in_matrix = index % tiles_of_matrix;
    const PackTile tile = {.matrix = index / tiles_of_matrix,
                           .line = in_matrix / tiles_of_line * Form::kTile,
                           .element = in_matrix % tiles_of_line * Form::kTile};
    StageTile<32, 32>(pack, tile, 0, thread, kBlockThreads, staged);
    __syncthreads();
    for (int i = thread; i < Form::kTile * kChunks; i += kBlockThreads) {
      // Two neighbouring threads write 32 bytes; all others read other banks.
      const int line = i / 2 % Form::kTile;
      const int chunk = i / (2 * Form::kTile) * 2 + i % 2;
      const int64_t byte = (tile.element + chunk * kChunk) * 2;
      if (tile.line + line >= pack.lines || byte >= pack.target_line_stride) continue;
      const MagnitudeRange range =
          job.ranges[tile.matrix * job.ranges_of_matrix + tile.line + line];
      const float scale = SplitLineOf(range).scale();
      Parts<DeviceF16> halves[2];
      for (int e = 0; e < kChunk; ++e) {
        halves[e / 4].Append(e % 4, staged[(chunk * kChunk + e) * Form::kStride + line], scale);
      }
      std::byte* const place = pack.target + tile.matrix * pack.target_batch_stride +
                               (tile.line + line) * pack.target_line_stride + byte;
      StoreChunk(place, {halves[0].high, halves[1].high});
      StoreChunk(place + job.part_bytes, {halves[0].low, halves[1].low});
    }
    __syncthreads();
  }
}

}  // namespace

absl::Status SplitOperand(const CudaRow& row, mma::Operand operand, const Problem& problem,
                          const OperandPlan& plan, const std::byte* source, std::byte* made,
                          MagnitudeRange* ranges, CUstream_st* stream) {
  ASSIGN_OR_RETURN(const OperandPacking packing,
                   PackingOf(row, operand, problem, plan, source, made));
  const SplitJob job = {.pack = packing.job,
                        .ranges = ranges,
                        .ranges_of_matrix = RangesOf(plan.lines),
                        .part_bytes = plan.part_bytes()};
  const PackJob& pack = job.pack;
  if (packing.lies_along) {
    SplitLinesKernel<<<BlocksFor(pack.lines * pack.batch), kBlockThreads, 0, stream>>>(job);
    return LaunchStatus("split");
  }
  const int64_t pieces_of_line = CeilOf(pack.length, kDepth);
  const int64_t pieces_of_matrix = CeilOf(pack.lines, kLinesOfPiece) * pieces_of_line;
  const int64_t pieces = pieces_of_matrix * pack.batch;
  RangesKernel<<<BlocksFor(pieces), kBlockThreads, 0, stream>>>(job, pieces_of_line,
                                                                pieces_of_matrix, pieces);
  RETURN_IF_ERROR(LaunchStatus("ranges"));
  const int64_t tiles_of_line = CeilOf(pack.length, Form::kTile);
  const int64_t tiles_of_matrix = CeilOf(pack.lines, Form::kTile) * tiles_of_line;
  const int64_t tiles = tiles_of_matrix * pack.batch;
  SplitTilesKernel<<<BlocksFor(tiles), kBlockThreads, 0, stream>>>(job, tiles_of_line,
                                                                   tiles_of_matrix, tiles);
  return LaunchStatus("split");
}

}  // namespace gemmd
