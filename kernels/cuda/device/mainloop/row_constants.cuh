// SPDX-License-Identifier: Apache-2.0
//
// Compile-time constants of a row, given as a type (row_type.h), for device code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/geometry.h"
#include "kernels/mma/ptx.h"

namespace gemmd {

template <typename Row>
inline constexpr CudaRow kRow = Row::Make();

// The name of the row's instruction in PTX; see ptx.cuh.
template <typename Row>
struct RowMnemonic {
  static constexpr mma::PtxMnemonic kSource = mma::PtxOf(kRow<Row>.instruction);
  static constexpr int kOperandBits = BitsOf(kRow<Row>.instruction.a);
  static constexpr bool kIsInteger = IsInteger(kRow<Row>.instruction.a);
  static constexpr bool kTransposesA = IsAcross(kRow<Row>.across, mma::Operand::kA);
  static constexpr bool kTransposesB = IsAcross(kRow<Row>.across, mma::Operand::kB);
};

// The sums of an instruction of warpgroups: their type, and how many of them a thread has.
template <typename Row>
using WarpgroupSum =
    std::conditional_t<kRow<Row>.instruction.d == ElementType::kS32, int32_t, float>;
template <typename Row>
inline constexpr int kWarpgroupSums = kRow<Row>.instruction.n / 2;

template <typename Row, bool kIsA>
struct WmmaLoadMnemonic {
  static constexpr mma::PtxMnemonic kSource = mma::WmmaLoadPtxOf(kRow<Row>.instruction, kIsA);
};

// Functions that pass such a constant on must copy it: device code cannot refer to constants of a
// class or namespace.
template <typename Row, mma::Operand kOperand>
__device__ mma::Position PositionInFragment(int lane, int element) {
  constexpr mma::Instruction kInstruction = kRow<Row>.instruction;
  return mma::PositionOf(kInstruction, kOperand, lane, element);
}

template <typename Row>
__device__ int LineInTile(int line_of_fragment) {
  constexpr bool kIsSpread = TakesLinesSpread(kRow<Row>);
  return kIsSpread ? SpreadLine(line_of_fragment) : line_of_fragment;
}

template <typename Row, mma::Operand kOperand>
__device__ int OffsetInTile(int line, int byte) {
  constexpr TileLines kLines = TileLinesOf(kRow<Row>, kOperand);
  return kLines.OffsetOf(line, byte);
}

}  // namespace gemmd
