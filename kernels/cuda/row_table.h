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
#include "kernels/cuda/groups/promoted.h"
#include "kernels/cuda/groups/small.h"
#include "kernels/cuda/groups/split.h"
#include "kernels/cuda/groups/wgmma.h"
#include "kernels/cuda/tiles.h"
#include "kernels/mma/instructions.h"

namespace gemmd {

// Calls `add` for each row of an instruction, group by group.
template <typename Add>
constexpr void ForEachRowOf(const mma::Instruction& instruction, const Add& add) {
  const auto add_all = [&]<size_t... kAt>(std::index_sequence<kAt...>) {
    (ForEachRowIn<static_cast<CudaGroup>(kAt)>(instruction, add), ...);
  };
  add_all(std::make_index_sequence<kCudaGroups>());
}

// Every row, in the order of the instructions; the largest tile of each instruction comes first.
inline constexpr auto kCudaRows = CollectRows([](const auto& add) {
  for (const mma::Instruction& instruction : mma::kInstructions) ForEachRowOf(instruction, add);
});

}  // namespace gemmd
