// SPDX-License-Identifier: Apache-2.0
//
// Properties that follow from a row: the layout of its tiles in shared memory, and how many of its
// blocks fit a multiprocessor. Host and device share these facts.
#pragma once

#include <cstdint>

#include "kernels/cuda/row.h"
#include "kernels/cuda/warp_work.h"
#include "kernels/mma/chip.h"

namespace gemmd {

// The type of accumulators as the epilogue gets them: f32 (also for f16), f64 or s32.
constexpr ElementType AccumulatorType(const CudaRow& row) {
  return row.instruction.d == ElementType::kF16 ? ElementType::kF32 : row.instruction.d;
}

// The stride of the accumulators' tile in shared memory, in elements: two more than its columns, so
// that both columns and rows spread over all banks.
constexpr int AccumulatorStride(const CudaRow& row) { return row.tile.n + 2; }

// The rows of a sparse A whose metadata a warp holds, also in a warpgroup instruction.
inline constexpr int kMetadataRows = 16;
// An instruction for types of 16 bits or more reads the metadata of half the lanes. In warpgroup
// rows, the other half holds the metadata of the next instruction along k.
constexpr int StepsOfMetadata(const CudaRow& row) {
  return HasWarpgroups(row) && BitsOf(row.instruction.a) >= 16 ? 2 : 1;
}
// In warpgroup rows, the words that a lane reads for one tile are contiguous.
constexpr int MetadataWordsTogether(const CudaRow& row) {
  return HasWarpgroups(row) ? StepsOfTile(row) / StepsOfMetadata(row) : 1;
}
// In ring rows, a sparse A's metadata is copied with the tile. A line holds the words of the lanes
// for kMetadataRows rows and all steps of the tile.
constexpr int MetadataLineBytes(const CudaRow& row) {
  return StepsOfTile(row) / StepsOfMetadata(row) * 32 * 4;
}
constexpr int MetadataBytes(const CudaRow& row) {
  return row.instruction.is_sparse() && HasRing(row)
             ? row.tile.m / kMetadataRows * MetadataLineBytes(row)
             : 0;
}

// One operand's tile of one stage in shared memory: lines of whole chunks of 16 bytes.
//
// The chunks of a line are swizzled, so that a warp that reads one chunk of eight neighbouring
// lines, or a lane's f64 of four, hits every bank once. wmma.load does not support that, so lines
// that it reads are padded instead. The copy engine has no swizzle for f64: where it copies,
// fragments use the lines in another order (SpreadLine).
struct TileLines {
  LineAxis axis;
  int lines;
  int line_bytes;
  bool is_f64;  // Whether chunks have the swizzle for f64.
  bool is_padded;
  // Warpgroups read lines of at most 128 bytes. Longer ones, across k, are cut into parts of that
  // length, which `lines` counts: the first parts of all lines come first, then the second parts.
  int parts = 1;

  constexpr int chunks() const { return line_bytes / 16; }
  // wmma.load needs lines that start on multiples of 32 bytes.
  constexpr int stride() const { return is_padded ? line_bytes + 32 : line_bytes; }
  constexpr int bytes() const { return lines * stride(); }
  constexpr int SwizzleOf(int line) const {
    if (is_padded) return 0;
    if (is_f64) return 2 * (line % (chunks() / 2 < 4 ? chunks() / 2 : 4));
    const int lines_of_banks = line_bytes < 128 ? 128 / line_bytes : 1;
    return line / lines_of_banks % (chunks() < 8 ? chunks() : 8);
  }
  // The offset of byte `byte` of a line in the tile.
  constexpr int OffsetOf(int line, int byte) const {
    return line * stride() + (byte / 16 ^ SwizzleOf(line)) * 16 + byte % 16;
  }
};

constexpr TileLines TileLinesOf(const CudaRow& row, mma::Operand operand) {
  const bool is_a = operand == mma::Operand::kA;
  const int bits = mma::ContainerBits(row.instruction, operand);
  const int across = is_a ? row.tile.m : row.tile.n;
  const int along = is_a && row.instruction.is_sparse() ? row.tile.k / 2 : row.tile.k;
  const LineAxis axis = LineAxisOf(row, operand);
  const bool is_along_k = axis == LineAxis::kK;
  if (!is_along_k && HasWarpgroups(row)) {
    constexpr int kSwizzled = 128;
    const int bytes = across * bits / 8;
    const int parts = bytes > kSwizzled ? bytes / kSwizzled : 1;
    return {axis, along * parts, bytes / parts, false, false, parts};
  }
  return {axis, is_along_k ? across : along, (is_along_k ? along : across) * bits / 8,
          bits == 64 && !HasRing(row), row.instruction.family == mma::Family::kWmma};
}

// Whether f64 fragments use each eight lines in the order of SpreadLine, so that a lane's f64 of
// four lines hit every bank once despite the copy engine's swizzle. Rows and columns of D follow
// that order.
constexpr bool TakesLinesSpread(const CudaRow& row) {
  return row.instruction.a == ElementType::kF64 && HasRing(row);
}
constexpr int SpreadLine(int line) { return line / 8 * 8 + line % 4 * 2 + line % 8 / 4; }

// A stage holds A's tiles, B's tiles and the metadata. If the copy engine writes it, the stage is
// aligned to the period of the swizzle.
inline constexpr int kSwizzleBytes = 1024;
// If f32 are split, each operand has two tiles: high parts and low parts.
constexpr int PartsOfOperands(const CudaRow& row) { return row.splits_f32 ? 2 : 1; }
constexpr int TileBytes(const CudaRow& row) {
  return (TileLinesOf(row, mma::Operand::kA).bytes() + TileLinesOf(row, mma::Operand::kB).bytes()) *
             PartsOfOperands(row) +
         MetadataBytes(row);
}
constexpr int StageBytes(const CudaRow& row) {
  if (!HasRing(row)) return TileBytes(row);
  return (TileBytes(row) + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
}

// Shared memory holds the stages and data exchanged by warps; after the last step, the tile of
// accumulators replaces them. Two barriers per stage follow, beyond the tile, because other blocks
// may arrive at them until the end.
inline constexpr int kBarrierBytes = 16;
// Tiles along k between two abort checks (mainloop/abort.cuh): about 100 us for the fastest rows,
// so that a read over the bus costs nothing, and less than 20 ms for the slowest.
inline constexpr int kTilesBetweenLooks = 1024;
// Bytes after a ring's barriers that signal an early stop (TilePipe).
inline constexpr int kStopBytes = 16;
//
// Stages stay full while warpgroups store D: each warpgroup has its own area after the stages, for
// as many columns of its instruction's rows as an instruction has in 16 bits. The copy engine reads
// blocks of each row from there: 128 bytes, or 64 if those are 64 columns.
constexpr int BlockOfRowBytes(ElementType stored) { return BitsOf(stored) == 8 ? 64 : 128; }
constexpr int StoreBytes(const CudaRow& row) {
  return HasWarpgroups(row) && !IsNarrow(row) ? row.instruction.n * 2 * row.instruction_rows() : 0;
}
// A row that multiplies promoted sums by factors of blocks has those of each stage after these
// areas: one for each row of the tile, then one for each column.
constexpr int FactorBytes(const CudaRow& row) {
  return row.scales_sums ? (row.tile.m + row.tile.n) * int{sizeof(float)} : 0;
}
constexpr int FactorsOffset(const CudaRow& row) {
  return row.stages * StageBytes(row) + WarpgroupsOf(row) * StoreBytes(row);
}
constexpr int BarriersOffset(const CudaRow& row) {
  if (HasWarpgroups(row)) return FactorsOffset(row) + row.stages * FactorBytes(row);
  const int stages = row.stages * StageBytes(row) + row.warps_m * row.warps_n *
                                                        ExchangeElements(row) *
                                                        BitsOf(ElementType::kF32) / 8;
  const int accumulators = row.tile.m * AccumulatorStride(row) * BitsOf(AccumulatorType(row)) / 8;
  const int bytes = stages > accumulators ? stages : accumulators;
  return (bytes + 7) / 8 * 8;
}
constexpr int StopOffset(const CudaRow& row) {
  return BarriersOffset(row) + row.stages * kBarrierBytes;
}
constexpr int SharedBytes(const CudaRow& row) {
  return StopOffset(row) + (HasRing(row) ? kStopBytes : 0);
}
// The row that multiplies promoted sums by factors, with as many stages as fit beside them.
constexpr CudaRow WithFactors(CudaRow row) {
  row.scales_sums = true;
  while (SharedBytes(row) > mma::SharedBytesOf(ShapedFor(row.instruction))) --row.stages;
  return row;
}

// Whether a thread's sums leave registers for more than the usual epilogue in f32: 192 do not.
constexpr bool LeavesRegisters(const CudaRow& row) {
  return InstructionsDown(row) * row.instruction.n / 2 <= 128;
}

// Whether a warpgroup has enough registers to finish sums in place (register_epilogue.cuh),
// together with metadata or in f64.
constexpr bool HasRoomToFinish(const CudaRow& row) {
  const bool needs_more = row.instruction.is_sparse() || AccumulatorType(row) == ElementType::kS32;
  return HasWarpgroups(row) && (!needs_more || LeavesRegisters(row));
}

// Whether a warpgroup applies GELU and SiLU in registers, which takes some more of them.
constexpr bool HasRoomToActivate(const CudaRow& row) {
  const int most = row.instruction.is_sparse() ? 64 : 128;
  return HasRoomToFinish(row) && AccumulatorType(row) == ElementType::kF32 &&
         InstructionsDown(row) * row.instruction.n / 2 <= most;
}

// Whether warpgroups can store elements of the type: unconverted sums, common floats, and fp8 or s8
// for products of any 8-bit types.
constexpr bool Stores(const CudaRow& row, ElementType type) {
  if (type == AccumulatorType(row)) return true;
  if (!HasRoomToFinish(row)) {
    return AccumulatorType(row) == ElementType::kF32 &&
           (type == ElementType::kF16 || type == ElementType::kBf16);
  }
  switch (type) {
    case ElementType::kF32:
    case ElementType::kF16:
    case ElementType::kBf16: return true;
    case ElementType::kE4m3:
    case ElementType::kE5m2:
      return AccumulatorType(row) == ElementType::kF32 && BitsOf(row.instruction.a) == 8 &&
             LeavesRegisters(row);
    case ElementType::kS8: return AccumulatorType(row) == ElementType::kS32;
    default: return false;
  }
}

// Whether a narrow row computes the transpose of D, so that D's longer side is vertical.
constexpr bool Transposes(const CudaRow& row, int64_t m, int64_t n) {
  return IsNarrow(row) && m < n;
}

// The number of tiles above each other that cover m rows, in whole clusters.
constexpr int64_t TilesDown(const CudaRow& row, int64_t m) {
  const int64_t rows = int64_t{row.tile.m} * row.cluster;
  return (m + rows - 1) / rows * row.cluster;
}

// The number of consecutive tiles in a column: tiles that run at the same time then share lines of
// A and B. Blocks that stay on their multiprocessors run in step, so the tiles of one round should
// form a square.
constexpr int TilesOfGroup(const CudaRow& row) {
  constexpr int kMultiprocessors = 132;
  if (!HasWarpgroups(row)) return 8;
  int best = 1;
  const auto lines = [&](int group) {
    return group * row.tile.m + (kMultiprocessors + group - 1) / group * row.tile.n;
  };
  for (int group = 2; group <= 32; ++group) {
    if (lines(group) < lines(best)) best = group;
  }
  return best;
}

// If this many columns share a factor, a kernel that multiplies promoted sums by factors of blocks
// loads it once for all of them.
constexpr int ColumnsOfFactor(const CudaRow& row) { return row.tile.n < 64 ? row.tile.n : 64; }
constexpr int GroupsOfFactors(const CudaRow& row) { return row.tile.n / ColumnsOfFactor(row); }

// Whether the registers suffice: an instruction that the chip's assembler expands takes registers
// beside the sums.
constexpr bool HasRegistersOn(const CudaRow& row, mma::Chip chip) {
  constexpr int kMaxSums = 128;
  return mma::SupportOn(row.instruction, chip) == mma::Support::kNative ||
         FragmentRegisters(row, mma::Operand::kD) <= kMaxSums;
}

// Whether a chip can run the row; builds have no code of the row for other chips.
constexpr bool RunsOn(const CudaRow& row, mma::Chip chip) {
  return mma::SupportOn(row.instruction, chip) != mma::Support::kUnavailable &&
         mma::HasAsyncCopies(chip) && SharedBytes(row) <= mma::SharedBytesOf(chip) &&
         HasRegistersOn(row, chip);
}

// The number of blocks that share a multiprocessor: as many as its shared memory and registers
// suffice for. Rows of warpgroups share out the registers among those for which there is memory.
constexpr int BlocksPerMultiprocessor(const CudaRow& row, mma::Chip chip) {
  constexpr int kReservedBytes = 1024;  // The system takes these from each block.
  const int by_memory = mma::SharedBytesOf(chip) / (SharedBytes(row) + kReservedBytes);
  if (HasWarpgroups(row)) return by_memory < 1 ? 1 : by_memory;
  const int by_registers = kRegisters / (ThreadsOfBlock(row, chip) * RegistersOf(row, chip));
  const int least = by_memory < by_registers ? by_memory : by_registers;
  return least < 1 ? 1 : least;
}

// Whether a launch of the row begins while the one before it ends (ptx::WaitForEarlierLaunches).
// If several blocks share a multiprocessor, blocks that begin early pile up on some multiprocessors
// and leave others idle: an H200 was up to 1.3 times slower.
constexpr bool BeginsEarly(const CudaRow& row, mma::Chip chip) {
  return HasRingOn(row, chip) && mma::HasEarlyLaunches(chip) &&
         BlocksPerMultiprocessor(row, chip) == 1;
}

}  // namespace gemmd
