// SPDX-License-Identifier: Apache-2.0
//
// The table of the GPU kernels. A new tile is a line in the header of its group
// (kernels/cuda/groups); name, limits, launcher, checks and benchmark follow from the row.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "kernels/cuda/groups/mma_bits.h"
#include "kernels/cuda/groups/mma_f16.h"
#include "kernels/cuda/groups/mma_f64.h"
#include "kernels/cuda/groups/mma_int8.h"
#include "kernels/cuda/groups/mma_sparse_floats.h"
#include "kernels/cuda/groups/mma_sparse_int8.h"
#include "kernels/cuda/groups/mma_tf32.h"
#include "kernels/cuda/groups/small.h"
#include "kernels/cuda/groups/wgmma.h"
#include "kernels/cuda/tiles.h"
#include "kernels/mma/instructions.h"

namespace gemmd {

// The tiles that an instruction's group has for it.
constexpr RowShapes TilesOf(const mma::Instruction& instruction) {
  const CudaGroup group = GroupOf(instruction);
  const auto find = [&]<size_t... kAt>(std::index_sequence<kAt...>) {
    RowShapes tiles;
    ((group == static_cast<CudaGroup>(kAt)
          ? void(tiles = GroupTiles<static_cast<CudaGroup>(kAt)>::Of(instruction))
          : void()),
     ...);
    return tiles;
  };
  return find(std::make_index_sequence<kCudaGroups>());
}

// Every row, in the order of the instructions; the largest tile of each instruction comes first.
inline constexpr auto kCudaRows = CollectRows([](const auto& add) {
  for (const mma::Instruction& instruction : mma::kInstructions) {
    ForEachRow(instruction, TilesOf(instruction), add);
  }
});

}  // namespace gemmd
