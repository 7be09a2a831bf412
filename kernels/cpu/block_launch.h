// SPDX-License-Identifier: Apache-2.0
//
// The rows of the CPU that multiply operands with factors of blocks: gemmd's own loops, because no
// library adds in an order that it states.
#pragma once

#include <array>

#include "kernels/cpu/row.h"
#include "kernels/kernel.h"

namespace gemmd {

extern const KernelFamily kBlockFamily;

constexpr RowText DeriveBlockName(ElementType a, ElementType b) {
  return RowText("gemmd.f32.", NameOf(a), ".", NameOf(b), ".blocks");
}

template <ElementType kA, ElementType kB>
struct BlockRowFacts {
  static constexpr RowText kName = DeriveBlockName(kA, kB);
};

template <ElementType kA, ElementType kB>
constexpr std::array<Kernel, 1> BlockRow() {
  return {Kernel{
      .name = BlockRowFacts<kA, kB>::kName.view(),
      .device_kind = DeviceKind::kCpu,
      .provider = "gemmd",
      .engine = "gemmd.blocks",
      .how =
          "sums of each block of k in f32, times the factors of the blocks, added in ascending k",
      .a = kA,
      .b = kB,
      .recipe = {.a_compute = ElementType::kF32,
                 .b_compute = ElementType::kF32,
                 .accumulation = ElementType::kF32,
                 .exact = false,
                 .flushes_subnormals = false,
                 .block_scaling = BlockScaling::kParts},
      .deterministic = true,
      .batch_invariant = true,
      .family = &kBlockFamily,
  }};
}

template <ElementType kA, ElementType... kBs>
constexpr auto BlockRowsOfA() {
  return JoinRows(BlockRow<kA, kBs>()...);
}

// Makes a row for every pair of the types.
template <ElementType... kTypes>
constexpr auto BlockPairs() {
  return JoinRows(BlockRowsOfA<kTypes, kTypes...>()...);
}

}  // namespace gemmd
