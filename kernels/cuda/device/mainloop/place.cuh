// SPDX-License-Identifier: Apache-2.0
//
// Which part of D a thread works on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mainloop/row_constants.cuh"
#include "kernels/cuda/device/mma_parameters.h"
#include "kernels/cuda/device/ptx/ptx.cuh"

namespace gemmd {

// The work of a thread. Neighbours in the grid share lines of A and B, which then stay in L2.
struct Place {
  int64_t row;  // Where the block's tile is in D.
  int64_t column;
  int64_t batch;
  int thread;
  int lane;
  int warp_row;  // Where the warp's part is in the tile.
  int warp_column;
};

template <typename Row>
__device__ Place PlaceInMatrix(const MmaParameters& parameters, int tile, int64_t batch) {
  constexpr CudaRow kOf = kRow<Row>;
  constexpr int kGroup = TilesOfGroup(kOf);
  const int first = tile / (kGroup * parameters.tiles_n) * kGroup;
  const int rows = min(parameters.tiles_m - first, kGroup);
  const int inside = tile % (kGroup * parameters.tiles_n);
  const int thread = ptx::ThreadInBlock();
  const int warp = thread / 32;
  return {.row = int64_t{first + inside % rows} * kOf.tile.m,
          .column = int64_t{inside / rows} * kOf.tile.n,
          .batch = batch,
          .thread = thread,
          .lane = thread % 32,
          .warp_row = warp % kOf.warps_m * (kOf.tile.m / kOf.warps_m),
          .warp_column = warp / kOf.warps_m * (kOf.tile.n / kOf.warps_n)};
}

// The place of a block that computes one tile.
template <typename Row>
__device__ Place FindPlace(const MmaParameters& parameters) {
  return PlaceInMatrix<Row>(parameters, ptx::BlockInGrid(), blockIdx.z + parameters.first_batch);
}

// The place of one of the tiles of all matrices.
template <typename Row>
__device__ Place PlaceOfTile(const MmaParameters& parameters, int tile) {
  const int tiles = parameters.tiles_m * parameters.tiles_n;
  return PlaceInMatrix<Row>(parameters, tile % tiles, tile / tiles);
}

}  // namespace gemmd
