// SPDX-License-Identifier: Apache-2.0
//
// How the copy engine of sm_90 finds the tiles of an operand in memory: which bytes of which lines
// of which matrix, and how chunks trade places on the way to shared memory (geometry.h).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/mma_parameters.h"

namespace gemmd {

// Of lines along k: x counts bytes of a line, y lines, z matrices of the batch (one where all share
// it). What a tile has beyond the operand is zero.
// Errors: Internal as CUDA's driver says.
absl::StatusOr<TileMap> TileMapOf(const OperandLines& operand, const TileLines& tile,
                                  int64_t batch);

}  // namespace gemmd
