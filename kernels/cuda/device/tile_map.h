// SPDX-License-Identifier: Apache-2.0
//
// How the copy engine of sm_90 finds the tiles of an operand in memory: which bytes of which lines
// of which matrix, and how chunks trade places on the way to shared memory (geometry.h).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/device/mma_parameters.h"
#include "kernels/cuda/geometry.h"

namespace gemmd {

// The part of one matrix that is copied at a time.
struct TileBox {
  int line_bytes;
  int lines;
  bool is_swizzled;  // As TileLines describes it; then lines have at most 128 bytes.
  int element_bytes = 4;
  int line_multiple = kLineAlignment;  // The map's lines end on a multiple of so many bytes.
};

// Maps a matrix by its lines: x counts elements in a line, y lines, z matrices of the batch (one
// where all share it). The part of a box that lies beyond the matrix is read as zero, and not
// written.
// Errors: Internal as CUDA's driver reports it.
absl::StatusOr<TileMap> TileMapOf(const OperandLines& operand, const TileBox& box, int64_t batch);

// Has the map be of a matrix elsewhere that lies in the same way, for a part of the time.
absl::Status MoveTileMap(const void* data, TileMap& map);

}  // namespace gemmd
