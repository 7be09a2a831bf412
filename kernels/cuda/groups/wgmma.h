// SPDX-License-Identifier: Apache-2.0
//
// wgmma: whole warpgroups multiply from shared memory, on sm_90 only. Sums are 32 bits wide.
#pragma once

#include "kernels/cuda/tiles.h"

namespace gemmd {

template <>
struct GroupTiles<CudaGroup::kWgmmaF16> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    return instruction.d == ElementType::kF32 ? WarpgroupTiles(instruction) : RowShapes();
  }
};

// Rarely used pairs of types have only the smaller tiles.
template <>
struct GroupTiles<CudaGroup::kWgmmaFp8> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    const bool is_usual =
        instruction.a == ElementType::kE4m3 && instruction.b == ElementType::kE4m3;
    if (instruction.d != ElementType::kF32 || (!is_usual && instruction.n > 128)) return {};
    return WarpgroupTiles(instruction);
  }
};

template <>
struct GroupTiles<CudaGroup::kWgmmaInt8> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    const bool is_usual = instruction.a == ElementType::kS8 && instruction.b == ElementType::kS8;
    const bool is_bits = instruction.a == ElementType::kB1;
    if (is_bits || instruction.saturates || (!is_usual && instruction.n > 128)) return {};
    return WarpgroupTiles(instruction);
  }
};

template <>
struct GroupTiles<CudaGroup::kWgmmaTf32> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    return WarpgroupTiles(instruction);
  }
};

template <>
struct GroupTiles<CudaGroup::kWgmmaSparseFloats> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    return instruction.d == ElementType::kF32 ? SparseWarpgroupTiles(instruction) : RowShapes();
  }
};

template <>
struct GroupTiles<CudaGroup::kWgmmaSparseBytes> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    const bool is_usual = instruction.a == instruction.b && (instruction.a == ElementType::kE4m3 ||
                                                             instruction.a == ElementType::kS8);
    if (instruction.d == ElementType::kF16 || instruction.saturates ||
        (!is_usual && instruction.n > 128)) {
      return {};
    }
    return SparseWarpgroupTiles(instruction);
  }
};

}  // namespace gemmd
