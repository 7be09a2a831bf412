// SPDX-License-Identifier: Apache-2.0
//
// Maps for the copy engine of sm_90: how it finds the tiles of an operand in memory (which bytes of
// which lines of which matrix), and how it swizzles chunks in shared memory (geometry.h).
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
  int line_multiple = kLineAlignment;  // The map's lines end on a multiple of this many bytes.
};

// Maps a matrix by its lines: x counts elements in a line, y lines, z matrices of the batch (one
// where all share it). Parts of a box beyond the matrix read as zero, and are not written. Errors:
// Internal as CUDA's driver reports it.
absl::StatusOr<TileMap> TileMapOf(const OperandLines& operand, const TileBox& box, int64_t batch);

// Points the map to another matrix with the same layout, which is faster than encoding a new map.
absl::Status MoveTileMap(const void* data, TileMap& map);

}  // namespace gemmd
