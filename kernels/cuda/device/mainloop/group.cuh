// SPDX-License-Identifier: Apache-2.0
//
// The code of the rows of a group; each source file of groups/ instantiates FunctionsOf for its
// group.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"
#include "kernels/cuda/device/mainloop/warpgroup_product.cuh"
#include "kernels/cuda/row_type.h"
#include "kernels/cuda/tiles.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"

namespace gemmd {

template <CudaGroup kGroup, Across kAcross, bool kScalesSums>
inline constexpr auto kGroupRows = CollectRows([](const auto& add) {
  const auto add_case = [&add](CudaRow row) {
    row.across = kAcross;
    if (kAcross != Across::kNone && !CanReadAcross(row)) return;
    if (!kScalesSums) return add(row);
    if (ScalesPromotedSums(row.instruction, row.promotion_k)) add(WithFactors(row));
  };
  for (const mma::Instruction& instruction : mma::kInstructions) {
    ForEachRowIn<kGroup>(instruction, add_case);
  }
});

// Whether one of the chips for which this file is compiled runs the row.
constexpr bool RunsInThisBuild(const CudaRow& row) {
  for (const int architecture : {__CUDA_ARCH_LIST__}) {
    const std::optional<mma::Chip> chip = mma::ChipFromCapability(architecture / 10);
    if (chip && RunsOn(row, *chip)) return true;
  }
  return false;
}

template <const auto& kRows, size_t kAt>
CudaFunction FunctionAt() {
  if constexpr (RunsInThisBuild(kRows[kAt])) {
    using Row = typename row_type::RowAt<kRows, kAt>::Type;
    if constexpr (HasWarpgroups(kRows[kAt])) {
      return {kRows[kAt], reinterpret_cast<const void*>(&WarpgroupKernel<Row>)};
    } else {
      return {kRows[kAt], reinterpret_cast<const void*>(&MmaKernel<Row>)};
    }
  }
  return {kRows[kAt], nullptr};
}

// The functions of an array of rows.
template <const auto& kRows>
std::span<const CudaFunction> FunctionsOfRows() {
  const auto make = []<size_t... kAt>(std::index_sequence<kAt...>) {
    return std::array<CudaFunction, sizeof...(kAt)>{FunctionAt<kRows, kAt>()...};
  };
  static const auto functions = make(std::make_index_sequence<kRows.size()>());
  return functions;
}

template <CudaGroup kGroup, Across kAcross, bool kScalesSums>
std::span<const CudaFunction> FunctionsOf() {
  return FunctionsOfRows<kGroupRows<kGroup, kAcross, kScalesSums>>();
}

}  // namespace gemmd
