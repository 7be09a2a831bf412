// SPDX-License-Identifier: Apache-2.0
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

template <int kBits, int kContainer>
__global__ void __launch_bounds__(kBlockThreads)
    CopyKernel(const __grid_constant__ PackJob job, const __grid_constant__ Pieces pieces,
               int shift) {
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
      StoreChunk(
          target + line * job.target_line_stride,
          AlongChunk<kBits, kContainer>(job, source + line * job.source_line_stride, chunk, shift));
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
    TransposeKernel(const __grid_constant__ PackJob job, const __grid_constant__ Tiles tiles,
                    int shift) {
  using Form = PackForm<kBits, kContainer>;
  __shared__ alignas(16) typename Form::Word staged[Form::kTile * Form::kStride];
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t index = blockIdx.x; index < tiles.tiles; index += gridDim.x) {
    const int64_t in_matrix = index % tiles.tiles_of_matrix;
    const PackTile tile = {.matrix = index / tiles.tiles_of_matrix,
                           .line = in_matrix / tiles.tiles_of_line * Form::kTile,
                           .element = in_matrix % tiles.tiles_of_line * Form::kTile};
    StageTile<kBits, kContainer>(job, tile, shift, thread, kBlockThreads, staged);
    __syncthreads();
    StoreTile<kBits, kContainer>(job, tile, thread, kBlockThreads, staged);
    __syncthreads();
  }
}

}  // namespace

absl::Status PackOperand(const CudaRow& row, mma::Operand operand, const Problem& problem,
                         const OperandPlan& plan, const std::byte* source, std::byte* made,
                         CUstream_st* stream) {
  ASSIGN_OR_RETURN(const OperandPacking packing,
                   PackingOf(row, operand, problem, plan, source, made));
  const PackJob& job = packing.job;
  WithPackForm(packing.bits, packing.container, [&]<int kBits, int kContainer>() {
    if (packing.lies_along) {
      const Pieces pieces = PiecesOf(job);
      CopyKernel<kBits, kContainer>
          <<<BlocksFor(pieces.pieces), kBlockThreads, 0, stream>>>(job, pieces, packing.shift);
    } else {
      const Tiles tiles = TilesOf(job, PackForm<kBits, kContainer>::kTile);
      TransposeKernel<kBits, kContainer>
          <<<BlocksFor(tiles.tiles), kBlockThreads, 0, stream>>>(job, tiles, packing.shift);
    }
  });
  return LaunchStatus("pack");
}

}  // namespace gemmd
