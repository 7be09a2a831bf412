// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a GPU kernel as plain constant data: host code derives names and limits from
// them, device code its template arguments.
//
// A block of threads computes a tile of D; its warps compute parts of the tile side by side. The
// block walks along k in steps of tile.k, several of which are loaded from memory at a time
// (stages). The tiles of a cluster's blocks are stacked vertically in D: each block loads a part of
// their common tile of B for all of them. In warpgroup rows, warps_m counts the warps of all
// warpgroups. The warpgroups' parts of the tile are stacked vertically, or each has its own tile
// and they take turns.
#pragma once

#include <cstdint>

#include "kernels/mma/chip.h"
#include "kernels/mma/fragment.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

struct Tile {
  int16_t m = 0;
  int16_t n = 0;
  int16_t k = 0;

  constexpr bool operator==(const Tile&) const = default;
};

// How tiles are copied to shared memory, and fragments loaded from there.
enum class Pipeline : uint8_t {
  kPlain,  // Threads copy the tiles, and fragments are loaded just before they are multiplied.
  kRing,   // The copy engine fills a ring of stages, and fragments are loaded ahead.
  // The copy engine fills a ring of stages, which warpgroups multiply in place. Persistent blocks
  // compute one tile of D after the other.
  kWarpgroups,
  // The same, but warpgroups alternate tiles, so that one multiplies while the other stores.
  kTurns,
};

// The axis of an operand's lines in memory that the kernel needs: along k, or along m or n.
enum class LineAxis : uint8_t { kK, kMn };

// The operands whose lines run across k, along m or n, where the instruction's run along k.
enum class Across : uint8_t { kNone, kA, kB, kBoth };

struct CudaRow {
  mma::Instruction instruction;
  Tile tile;  // In elements; for a sparse A, in elements of the dense one.
  int8_t warps_m = 0;
  int8_t warps_n = 0;
  int8_t stages = 0;
  int8_t cluster = 1;
  Pipeline pipeline = Pipeline::kPlain;
  int16_t promotion_k = 0;  // Recipe::promotion_k; a part of the tile's k.
  bool splits_f32 = false;  // Recipe::splits_f32.
  // kNone for rows of the catalogue. Their kernels have code for each value if CanReadAcross.
  Across across = Across::kNone;
  // Whether the kernel multiplies promoted sums by factors of blocks; false for rows of the
  // catalogue. There is additional code for rows that can (ScalesPromotedSums).
  bool scales_sums = false;

  constexpr int threads() const { return 32 * warps_m * warps_n; }
  // The rows that one instruction computes: its independent products are stacked vertically.
  constexpr int instruction_rows() const { return instruction.m * instruction.products(); }

  constexpr bool operator==(const CudaRow&) const = default;
};

// Fragments hold elements that are neighbours in memory, and instructions with layouts in their
// names need operands in that order.
constexpr LineAxis LineAxisOf(const mma::Instruction& instruction, mma::Operand operand) {
  if (operand == mma::Operand::kA) {
    return instruction.a_layout == mma::Layout::kRow ? LineAxis::kK : LineAxis::kMn;
  }
  return instruction.b_layout == mma::Layout::kColumn ? LineAxis::kK : LineAxis::kMn;
}

constexpr bool IsAcross(Across across, mma::Operand operand) {
  return across == Across::kBoth ||
         across == (operand == mma::Operand::kA ? Across::kA : Across::kB);
}
constexpr LineAxis LineAxisOf(const CudaRow& row, mma::Operand operand) {
  return IsAcross(row.across, operand) ? LineAxis::kMn : LineAxisOf(row.instruction, operand);
}
// Whether the row's kernel reads either operand in either order: warpgroup instructions transpose
// operands of 16 bits. The transposition is a part of the instruction, so there is code for each
// case, but none for sparse rows, and none for rows that split f32, which pack in any case.
constexpr bool CanReadAcross(const CudaRow& row) {
  return row.instruction.family == mma::Family::kWgmma && BitsOf(row.instruction.a) == 16 &&
         BitsOf(row.instruction.b) == 16 && !row.splits_f32;
}

// The chip for which the rows of an instruction are shaped.
constexpr mma::Chip ShapedFor(const mma::Instruction& instruction) {
  constexpr mma::Chip kFirst = mma::Chip::kSm90;
  const bool has_it = mma::SupportOn(instruction, kFirst) != mma::Support::kUnavailable;
  return has_it ? kFirst : mma::Chip::kSm120;
}
// Whether the instruction is native on the chip that its rows are shaped for.
constexpr bool IsShapedNative(const mma::Instruction& instruction) {
  return mma::SupportOn(instruction, ShapedFor(instruction)) == mma::Support::kNative;
}

// Lines of operands start on multiples of this many bytes, so that 16-byte copies are aligned.
inline constexpr int kLineAlignment = 16;
// Kernels count the bytes of a line in 32 bits.
inline constexpr int64_t kMaxLineBytes = (int64_t{1} << 31) - 1;

}  // namespace gemmd
