// SPDX-License-Identifier: Apache-2.0
//
// What device code knows of a row: kCudaRows[kIndex] and what follows from it, as constants that
// cost nothing.
#pragma once

#include <cstddef>

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/row_table.h"
#include "kernels/mma/ptx.h"

namespace gemmd {

template <size_t kIndex>
inline constexpr CudaRow kRow = kCudaRows[kIndex];

// What the row's instruction is called; see ptx.cuh.
template <size_t kIndex>
struct RowMnemonic {
  static constexpr mma::PtxMnemonic kSource = mma::PtxOf(kRow<kIndex>.instruction);
};

template <size_t kIndex, bool kIsA>
struct WmmaLoadMnemonic {
  static constexpr mma::PtxMnemonic kSource = mma::WmmaLoadPtxOf(kRow<kIndex>.instruction, kIsA);
};

// Constants are copied into each function that passes them on: device code cannot refer to those of
// a class or namespace.
template <size_t kIndex, mma::Operand kOperand>
__device__ mma::Position PositionInFragment(int lane, int element) {
  constexpr mma::Instruction kInstruction = kRow<kIndex>.instruction;
  return mma::PositionOf(kInstruction, kOperand, lane, element);
}

template <size_t kIndex>
__device__ int LineInTile(int line_of_fragment) {
  constexpr bool kIsSpread = TakesLinesSpread(kRow<kIndex>);
  return kIsSpread ? SpreadLine(line_of_fragment) : line_of_fragment;
}

template <size_t kIndex, mma::Operand kOperand>
__device__ int OffsetInTile(int line, int byte) {
  constexpr TileLines kLines = TileLinesOf(kRow<kIndex>, kOperand);
  return kLines.OffsetOf(line, byte);
}

}  // namespace gemmd
