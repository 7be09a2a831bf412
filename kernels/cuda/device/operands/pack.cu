// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "absl/container/inlined_vector.h"
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/operands/pack.h"
#include "kernels/cuda/operands/pack_jobs.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

// A block writes pieces. In each of kTurns turns it writes `chunks` neighbouring chunks of each of
// kBlockThreads / chunks lines, then goes on to the lines after them.
constexpr int kTurns = 4;

struct Pieces {
  int chunks = 1;  // A power of 2.
  int lines = 0;
  int64_t pieces_of_line = 0;
  int64_t pieces_of_matrix = 0;
  int64_t pieces = 0;
};

Pieces PiecesOf(const PackJob& job) {
  Pieces pieces;
  const int64_t chunks = job.target_line_stride / kChunkBytes;
  while (pieces.chunks < chunks && pieces.chunks < kBlockThreads) pieces.chunks *= 2;
  pieces.lines = kTurns * kBlockThreads / pieces.chunks;
  pieces.pieces_of_line = CeilOf(chunks, pieces.chunks);
  pieces.pieces_of_matrix = CeilOf(job.lines, pieces.lines) * pieces.pieces_of_line;
  pieces.pieces = pieces.pieces_of_matrix * job.batch;
  return pieces;
}

// What the blocks of one launch pack: the operand of blockIdx.y.
template <typename Work>
struct Packing {
  PackJob job;
  Work work;
  int shift = 0;
};
template <typename Work>
using Packings = std::array<Packing<Work>, 2>;

template <int kBits, int kContainer>
__global__ void __launch_bounds__(kBlockThreads)
    CopyKernel(const __grid_constant__ Packings<Pieces> packings) {
  const Packing<Pieces>& packing = packings.data()[blockIdx.y];
  const PackJob& job = packing.job;
  const Pieces& pieces = packing.work;
  const int in_line = static_cast<int>(threadIdx.x) % pieces.chunks;
  const int first_line = static_cast<int>(threadIdx.x) / pieces.chunks;
  for (int64_t piece = blockIdx.x; piece < pieces.pieces; piece += gridDim.x) {
    const int64_t matrix = piece / pieces.pieces_of_matrix;
    const int64_t in_matrix = piece % pieces.pieces_of_matrix;
    const int64_t chunk = in_matrix % pieces.pieces_of_line * pieces.chunks + in_line;
    if (chunk * kChunkBytes >= job.target_line_stride) continue;
    int64_t line = in_matrix / pieces.pieces_of_line * pieces.lines + first_line;
    const std::byte* source = job.source + matrix * job.source_batch_stride;
    std::byte* target = job.target + matrix * job.target_batch_stride + chunk * kChunkBytes;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn, line += kBlockThreads / pieces.chunks) {
      if (line >= job.lines) break;
      StoreChunk(target + line * job.target_line_stride,
                 AlongChunk<kBits, kContainer>(job, source + line * job.source_line_stride, chunk,
                                               packing.shift));
    }
  }
}

struct Tiles {
  int64_t tiles_of_line = 0;
  int64_t tiles_of_matrix = 0;
  int64_t tiles = 0;
};

Tiles TilesOf(const PackJob& job, int tile) {
  Tiles tiles;
  tiles.tiles_of_line = CeilOf(job.length, tile);
  tiles.tiles_of_matrix = CeilOf(job.lines, tile) * tiles.tiles_of_line;
  tiles.tiles = tiles.tiles_of_matrix * job.batch;
  return tiles;
}

template <int kBits, int kContainer>
__global__ void __launch_bounds__(kBlockThreads)
    TransposeKernel(const __grid_constant__ Packings<Tiles> packings) {
  using Form = PackForm<kBits, kContainer>;
  const Packing<Tiles>& packing = packings.data()[blockIdx.y];
  const PackJob& job = packing.job;
  const Tiles& tiles = packing.work;
  __shared__ alignas(16) typename Form::Word staged[Form::kTile * Form::kStride];
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t index = blockIdx.x; index < tiles.tiles; index += gridDim.x) {
    const int64_t in_matrix = index % tiles.tiles_of_matrix;
    const PackTile tile = {.matrix = index / tiles.tiles_of_matrix,
                           .line = in_matrix / tiles.tiles_of_line * Form::kTile,
                           .element = in_matrix % tiles.tiles_of_line * Form::kTile};
    StageTile<kBits, kContainer>(job, tile, packing.shift, thread, kBlockThreads, staged);
    __syncthreads();
    StoreTile<kBits, kContainer>(job, tile, thread, kBlockThreads, staged);
    __syncthreads();
  }
}

bool ArePackedAlike(const OperandPacking& x, const OperandPacking& y) {
  return x.bits == y.bits && x.container == y.container && x.lies_along == y.lies_along;
}

dim3 GridOf(int64_t work, size_t operands) {
  return {BlocksFor(work), static_cast<unsigned>(operands)};
}

// One launch for operands that are packed alike.
absl::Status Pack(absl::Span<const OperandPacking> operands, CUstream_st* stream) {
  const OperandPacking& first = operands.front();
  int64_t max_work = 0;  // Pieces or tiles of the larger operand.
  WithPackForm(first.bits, first.container, [&]<int kBits, int kContainer>() {
    if (first.lies_along) {
      Packings<Pieces> packings;
      for (size_t i = 0; i < operands.size(); ++i) {
        packings[i] = {operands[i].job, PiecesOf(operands[i].job), operands[i].shift};
        max_work = std::max(max_work, packings[i].work.pieces);
      }
      CopyKernel<kBits, kContainer>
          <<<GridOf(max_work, operands.size()), kBlockThreads, 0, stream>>>(packings);
    } else {
      Packings<Tiles> packings;
      for (size_t i = 0; i < operands.size(); ++i) {
        const Tiles tiles = TilesOf(operands[i].job, PackForm<kBits, kContainer>::kTile);
        packings[i] = {operands[i].job, tiles, operands[i].shift};
        max_work = std::max(max_work, tiles.tiles);
      }
      TransposeKernel<kBits, kContainer>
          <<<GridOf(max_work, operands.size()), kBlockThreads, 0, stream>>>(packings);
    }
  });
  return LaunchStatus("pack");
}

}  // namespace

absl::Status PackOperands(const CudaRow& row, const Problem& problem,
                          absl::Span<const PackedOperand> operands, CUstream_st* stream) {
  absl::InlinedVector<OperandPacking, 2> packings;
  for (const PackedOperand& one : operands) {
    ASSIGN_OR_RETURN(packings.emplace_back(),
                     PackingOf(row, one.operand, problem, one.plan, one.source, one.made));
  }
  if (packings.size() == 2 && ArePackedAlike(packings[0], packings[1])) {
    return Pack(packings, stream);
  }
  for (const OperandPacking& one : packings) {
    RETURN_IF_ERROR(Pack(absl::MakeConstSpan(&one, 1), stream));
  }
  return absl::OkStatus();
}

}  // namespace gemmd
