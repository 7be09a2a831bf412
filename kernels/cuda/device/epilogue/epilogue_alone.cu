// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <type_traits>

#include "kernels/cuda/device/epilogue/epilogue.cuh"
#include "kernels/cuda/device/epilogue/epilogue_alone.h"
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/epilogue.h"

namespace gemmd {
namespace {

constexpr int kTileLines = EpilogueAloneTile::kLines;
constexpr int kTileLength = EpilogueAloneTile::kLength;
static_assert(kBlockThreads == EpilogueAloneTile::kThreads);

struct Tiling {
  int rows;
  int columns;
  int64_t tiles_along_rows;  // The number of tiles side by side.
  int64_t tiles_of_matrix;
  int64_t tiles;
};

Tiling TilingOf(const Problem& problem) {
  const bool is_row_major = problem.d.order == Order::kRowMajor;
  Tiling tiling;
  tiling.rows = is_row_major ? kTileLines : kTileLength;
  tiling.columns = is_row_major ? kTileLength : kTileLines;
  tiling.tiles_along_rows = (problem.n + tiling.columns - 1) / tiling.columns;
  tiling.tiles_of_matrix = (problem.m + tiling.rows - 1) / tiling.rows * tiling.tiles_along_rows;
  tiling.tiles = tiling.tiles_of_matrix * problem.batch;
  return tiling;
}

// Stores the accumulator of one element, if StoreDirectly does the whole epilogue.
template <typename Accumulator>
__device__ __forceinline__ void StoreOne(const EpilogueParameters& parameters, std::byte* target,
                                         Accumulator x) {
  if constexpr (std::is_same_v<Accumulator, int32_t>) {
    *reinterpret_cast<int32_t*>(target) = x;
  } else if constexpr (std::is_same_v<Accumulator, double>) {
    *reinterpret_cast<uint64_t*>(target) =
        parameters.is_plain ? std::bit_cast<uint64_t>(x) : BitsWithOneNan(x * parameters.alpha);
  } else {
    x *= parameters.alpha_f32;  // 1 changes nothing.
    if (parameters.d.type == ElementType::kF32) {
      *reinterpret_cast<uint32_t*>(target) = BitsWithOneNan(x);
    } else {
      *reinterpret_cast<uint16_t*>(target) =
          static_cast<uint16_t>(NarrowPairTo(parameters.d.type, x, 0));
    }
  }
}

// The tile of a row-major D. Neighbouring threads have neighbouring elements, whatever the
// alignment of D, and each thread reads all of its elements before it stores the first.
template <typename Accumulator>
__device__ __forceinline__ void StoreTile(const EpilogueParameters& parameters,
                                          const StagedTile<Accumulator>& tile) {
  constexpr int kParts = kTileLength / kBlockThreads;
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t columns = parameters.n - tile.first_column - thread;
  const int64_t rows = parameters.m - tile.first_row;
  Accumulator sums[kTileLines][kParts];
#pragma unroll
  for (int row = 0; row < kTileLines; ++row) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (row >= rows || part * kBlockThreads >= columns) continue;
      sums[row][part] = tile.data[row * tile.stride + part * kBlockThreads + thread];
    }
  }
  const int element_bytes = BitsOf(parameters.d.type) / 8;
  std::byte* const first = parameters.d.data + tile.batch_index * parameters.d.batch_stride_bytes +
                           tile.first_row * parameters.d.line_stride_bytes +
                           (tile.first_column + thread) * element_bytes;
#pragma unroll
  for (int row = 0; row < kTileLines; ++row) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (row >= rows || part * kBlockThreads >= columns) continue;
      StoreOne(parameters,
               first + row * parameters.d.line_stride_bytes + part * kBlockThreads * element_bytes,
               sums[row][part]);
    }
  }
}

// Without the 1, ptxas was seen to spill registers to fit more blocks.
template <typename Accumulator>
__global__ void __launch_bounds__(kBlockThreads, 1)
    EpilogueKernel(const __grid_constant__ EpilogueParameters parameters,
                   const __grid_constant__ Tiling tiling,
                   const __grid_constant__ SumsInMemory sums) {
  for (int64_t tile = blockIdx.x; tile < tiling.tiles; tile += gridDim.x) {
    const int64_t in_matrix = tile % tiling.tiles_of_matrix;
    StagedTile<Accumulator> staged = {
        .rows = tiling.rows,
        .columns = tiling.columns,
        .stride = static_cast<int>(sums.line_stride_bytes / int64_t{sizeof(Accumulator)}),
        .batch_index = tile / tiling.tiles_of_matrix,
        .first_row = in_matrix / tiling.tiles_along_rows * tiling.rows,
        .first_column = in_matrix % tiling.tiles_along_rows * tiling.columns};
    if (sums.data != nullptr) {
      staged.data = reinterpret_cast<const Accumulator*>(
                        sums.data + staged.batch_index * sums.batch_stride_bytes +
                        staged.first_row * sums.line_stride_bytes) +
                    staged.first_column;
    }
    const bool is_row_major = parameters.d.order == Order::kRowMajor;
    if (parameters.stores_directly && is_row_major && sums.data != nullptr) {
      StoreTile(parameters, staged);
      continue;
    }
    ApplyEpilogueToPart<DeviceEncoder>(parameters, staged, static_cast<int>(threadIdx.x),
                                       kBlockThreads);
  }
}

}  // namespace

absl::Status LaunchEpilogueAlone(const GemmArgs& args, ElementType accumulators,
                                 const SumsInMemory& sums, CUstream_st* stream) {
  if (!args.problem.has_output()) return absl::OkStatus();
  EpilogueParameters parameters = EpilogueOf(args, accumulators);
  parameters.has_product = sums.data != nullptr;
  const Tiling tiling = TilingOf(args.problem);
  const unsigned blocks = BlocksFor(tiling.tiles);
  switch (accumulators) {
    case ElementType::kF32:
      EpilogueKernel<float><<<blocks, kBlockThreads, 0, stream>>>(parameters, tiling, sums);
      break;
    case ElementType::kS32:
      EpilogueKernel<int32_t><<<blocks, kBlockThreads, 0, stream>>>(parameters, tiling, sums);
      break;
    default: EpilogueKernel<double><<<blocks, kBlockThreads, 0, stream>>>(parameters, tiling, sums);
  }
  return LaunchStatus("epilogue");
}

}  // namespace gemmd
