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

// What is copied at a time, of one matrix.
struct TileBox {
  int line_bytes;
  int lines;
  bool is_swizzled;  // As TileLines has it; then lines have 128 bytes at most.
};

// Of lines along k: x counts words of 4 bytes of a line, y lines, z matrices of the batch (one
// where all share it). What a box has beyond the operand is zero. Errors: Internal as CUDA's driver
// says.
absl::StatusOr<TileMap> TileMapOf(const OperandLines& operand, const TileBox& box, int64_t batch);

}  // namespace gemmd
