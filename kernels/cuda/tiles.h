// SPDX-License-Identifier: Apache-2.0
//
// The tiles that rows are made of, and how a tile and an instruction make a row. Every instruction
// of a warp has the small tile; the groups (kernels/cuda/groups) say which others their
// instructions have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/group.h"
#include "kernels/cuda/row.h"
#include "kernels/cuda/warp_work.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"

namespace gemmd {

// A tile and the work on it. k_bytes counts bytes of the operand that holds all of k.
struct RowShape {
  int16_t m;
  int16_t n;
  int16_t k_bytes;
  int8_t warps_m;
  int8_t warps_n;
  int8_t stages;
  int8_t cluster = 1;
  bool takes_turns = false;  // Each warpgroup has its own tiles.
};

using RowShapes = std::span<const RowShape>;

// The first tile is the largest one that registers hold, turned so that the operand with the
// smaller fragments is kept. Smaller tiles for smaller matrices follow. The last one is for few
// blocks with a long k: it has many stages in flight.
inline constexpr std::array<RowShape, 6> kDenseTiles = {{{192, 256, 128, 2, 4, 4, 2},
                                                         {128, 256, 128, 2, 4, 3},
                                                         {256, 128, 128, 4, 2, 3},
                                                         {128, 128, 128, 2, 2, 3},
                                                         {64, 64, 128, 2, 2, 4},
                                                         {64, 64, 128, 2, 2, 12}}};
inline constexpr std::array<RowShape, 6> kSparseTiles = {{{256, 192, 128, 4, 2, 5, 2},
                                                          {128, 256, 128, 2, 4, 3},
                                                          {256, 128, 128, 4, 2, 3},
                                                          {128, 128, 128, 2, 2, 3},
                                                          {64, 64, 128, 2, 2, 4},
                                                          {64, 64, 128, 2, 2, 12}}};
// The tiles of warpgroups, by the n of their instruction. 256x192 loads the fewest bytes per
// operation; 128x256 and 256x128 divide more matrices well; 128x128 serves smaller ones, and 128x64
// those for which larger tiles would leave multiprocessors idle.
inline constexpr std::array<RowShape, 1> kWarpgroupTilesOf256 = {{{128, 256, 128, 8, 1, 3}}};
inline constexpr std::array<RowShape, 1> kWarpgroupTilesOf192 = {{{256, 192, 128, 8, 1, 3}}};
inline constexpr std::array<RowShape, 3> kWarpgroupTilesOf128 = {
    {{256, 128, 128, 8, 1, 4}, {128, 128, 128, 8, 1, 6}, {128, 128, 128, 8, 1, 6, 1, true}}};
// A stage is as short as the swizzle allows, and there are as many of them as fit: narrow tiles
// need many bytes in flight. The last one of 64 is for batches of tiny matrices (IsTiny).
inline constexpr std::array<RowShape, 3> kWarpgroupTilesOf64 = {
    {{128, 64, 128, 8, 1, 8}, {64, 64, 128, 4, 1, 14}, {64, 64, 128, 4, 1, 4}}};
inline constexpr std::array<RowShape, 1> kNarrowTilesOf32 = {{{64, 32, 128, 4, 1, 18}}};
inline constexpr std::array<RowShape, 1> kNarrowTilesOf16 = {{{64, 16, 128, 4, 1, 22}}};
constexpr RowShapes WarpgroupTiles(const mma::Instruction& instruction) {
  // The transpose of a product swaps its types.
  if (instruction.n <= 64 && instruction.a != instruction.b) return {};
  const bool has_tiny = BitsOf(instruction.a) == 16;
  switch (instruction.n) {
    case 256: return kWarpgroupTilesOf256;
    case 192: return kWarpgroupTilesOf192;
    case 128: return kWarpgroupTilesOf128;
    case 64: return RowShapes(kWarpgroupTilesOf64).first(has_tiny ? 3 : 2);
    case 32: return kNarrowTilesOf32;
    case 16: return kNarrowTilesOf16;
    default: return {};
  }
}

// The lines of a sparse A are half as long, so tall tiles load the fewest bytes.
inline constexpr std::array<RowShape, 1> kSparseWarpgroupTilesOf192 = {{{256, 192, 128, 8, 1, 4}}};
inline constexpr std::array<RowShape, 2> kSparseWarpgroupTilesOf128 = {
    {{256, 128, 128, 8, 1, 5}, {128, 128, 128, 8, 1, 7}}};
constexpr RowShapes SparseWarpgroupTiles(const mma::Instruction& instruction) {
  switch (instruction.n) {
    case 192: return kSparseWarpgroupTilesOf192;
    case 128: return kSparseWarpgroupTilesOf128;
    default: return {};
  }
}

// The tiles of promoted sums: a warpgroup has the totals of all its rows and the sums of one
// instruction, so an instruction has at most 192 columns, and 128 if there are two instructions per
// warpgroup.
inline constexpr std::array<RowShape, 1> kPromotedTilesOf192 = {{{128, 192, 128, 8, 1, 4}}};
constexpr RowShapes PromotedTiles(const mma::Instruction& instruction) {
  if (instruction.n == 192) {
    return instruction.is_sparse() ? RowShapes() : RowShapes(kPromotedTilesOf192);
  }
  if (instruction.n > 128) return {};
  return instruction.is_sparse() ? SparseWarpgroupTiles(instruction) : WarpgroupTiles(instruction);
}

// The tiles of instructions that clamp after each step.
inline constexpr std::array<RowShape, 2> kSaturatingTiles = {
    {{128, 128, 128, 2, 2, 3}, {64, 64, 128, 2, 2, 4}}};

// Whether the instruction is the deepest native one of its types on sm_90. Only that one has large
// tiles.
constexpr bool IsDeepestOnHopper(const mma::Instruction& instruction) {
  if (mma::SupportOn(instruction, mma::Chip::kSm90) != mma::Support::kNative) return false;
  if (instruction.rounding != mma::Rounding::kNearestEven) return false;
  const int k_bytes = instruction.k * BitsOf(instruction.b) / 8;
  if (instruction.family == mma::Family::kMma) {
    return instruction.m == 16 && k_bytes == (instruction.a == ElementType::kF64 ? 128 : 32);
  }
  return instruction.family == mma::Family::kMmaSparse && k_bytes == 64;
}

// The tiles of a group's instructions: Of(instruction), in the order of preference. Each group has
// its own specialization, so that a new tile rebuilds the code of its group alone.
template <CudaGroup kGroup>
struct GroupTiles;

// The tile of the last row of every instruction of a warp. One step fills the registers if ptxas
// expands the instruction.
constexpr RowShape SmallTile(const mma::Instruction& instruction) {
  const bool is_deep = instruction.is_sparse() && IsShapedNative(instruction);
  return {64, 64, static_cast<int16_t>(is_deep ? 128 : 64), 2, 2, 3};
}

template <CudaGroup kGroup>
constexpr CudaRow MakeRow(const mma::Instruction& instruction, const RowShape& shape) {
  CudaRow row;
  row.promotion_k = kGroup == CudaGroup::kPromoted ? kPromotionK
                    : kGroup == CudaGroup::kSplit  ? kSplitPromotionK
                                                   : 0;
  row.splits_f32 = kGroup == CudaGroup::kSplit;
  row.instruction = instruction;
  const int elements = shape.k_bytes * 8 / mma::ContainerBits(instruction, mma::Operand::kB);
  row.tile = {shape.m, shape.n,
              static_cast<int16_t>(elements < instruction.k ? instruction.k : elements)};
  row.warps_m = shape.warps_m;
  row.warps_n = shape.warps_n;
  row.stages = shape.stages;
  row.cluster = shape.cluster;
  row.pipeline = shape.takes_turns            ? Pipeline::kTurns
                 : instruction.is_warpgroup() ? Pipeline::kWarpgroups
                 : CanLoadAhead(row)          ? Pipeline::kRing
                                              : Pipeline::kPlain;
  return row;
}

// Calls `add` for each row that an instruction has in a group.
template <CudaGroup kGroup, typename Add>
constexpr void ForEachRowIn(const mma::Instruction& instruction, const Add& add) {
  if (!HasRowsIn(kGroup, instruction)) return;
  for (const RowShape& shape : GroupTiles<kGroup>::Of(instruction)) {
    add(MakeRow<kGroup>(instruction, shape));
  }
  if (instruction.is_warpgroup()) return;
  add(MakeRow<kGroup>(instruction, SmallTile(instruction)));
}

// Calls `for_each` with a function that adds a row, and returns the added rows as an array of
// exactly that size.
template <typename ForEach>
consteval auto CollectRows(ForEach for_each) {
  constexpr size_t kCount = [] {
    size_t count = 0;
    ForEach()([&](const CudaRow&) { ++count; });
    return count;
  }();
  std::array<CudaRow, kCount> rows = {};
  size_t next = 0;
  for_each([&](const CudaRow& row) { rows[next++] = row; });
  return rows;
}

}  // namespace gemmd
