// SPDX-License-Identifier: Apache-2.0
//
// What follows from a row alone: how its tiles lie in shared memory, and how many of its blocks fit
// into a multiprocessor. Host and device share these facts.
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
// that its columns as well as its rows lie in all banks.
constexpr int AccumulatorStride(const CudaRow& row) { return row.tile.n + 2; }

// A warp has the metadata of so many rows of a sparse A, in an instruction of a warpgroup too.
inline constexpr int kMetadataRows = 16;
// An instruction for types of 16 bits or more reads the metadata of half the lanes. Warpgroups have
// the other half hold the metadata of the next instruction along k.
constexpr int StepsOfMetadata(const CudaRow& row) {
  return HasWarpgroups(row) && BitsOf(row.instruction.a) >= 16 ? 2 : 1;
}
// The words that a lane takes from one tile lie together where warpgroups multiply.
constexpr int MetadataWordsTogether(const CudaRow& row) {
  return HasWarpgroups(row) ? StepsOfTile(row) / StepsOfMetadata(row) : 1;
}
// Where there is a ring, a sparse A's metadata comes with the tile. A line holds the words that the
// lanes of kMetadataRows rows take in the steps of the tile.
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
// Chunks of a line trade places (swizzle), so that a warp that reads one chunk of eight
// neighbouring lines, or a lane's f64 of four, meets every bank once. wmma.load knows nothing of
// that, so the lines that it reads are padded instead. The copy engine has no swizzle for f64:
// where it copies, fragments take lines in another order (SpreadLine).
struct TileLines {
  LineAxis axis;
  int lines;
  int line_bytes;
  bool is_f64;  // Whether chunks have the swizzle for f64.
  bool is_padded;

  constexpr int chunks() const { return line_bytes / 16; }
  // wmma.load wants lines to start on multiples of 32 bytes.
  constexpr int stride() const { return is_padded ? line_bytes + 32 : line_bytes; }
  constexpr int bytes() const { return lines * stride(); }
  constexpr int SwizzleOf(int line) const {
    if (is_padded) return 0;
    if (is_f64) return 2 * (line % (chunks() / 2 < 4 ? chunks() / 2 : 4));
    const int lines_of_banks = line_bytes < 128 ? 128 / line_bytes : 1;
    return line / lines_of_banks % (chunks() < 8 ? chunks() : 8);
  }
  // Where byte `byte` of a line lies in the tile.
  constexpr int OffsetOf(int line, int byte) const {
    return line * stride() + (byte / 16 ^ SwizzleOf(line)) * 16 + byte % 16;
  }
};

constexpr TileLines TileLinesOf(const CudaRow& row, mma::Operand operand) {
  const bool is_a = operand == mma::Operand::kA;
  const int bits = mma::ContainerBits(row.instruction, operand);
  const int across = is_a ? row.tile.m : row.tile.n;
  const int along = is_a && row.instruction.is_sparse() ? row.tile.k / 2 : row.tile.k;
  const LineAxis axis = LineAxisOf(row.instruction, operand);
  const bool is_along_k = axis == LineAxis::kK;
  return {axis, is_along_k ? across : along, (is_along_k ? along : across) * bits / 8,
          bits == 64 && !HasRing(row), row.instruction.family == mma::Family::kWmma};
}

// Whether fragments of f64 take the lines of every eight in the order of SpreadLine, so that a
// lane's f64 of four lines meet every bank once although chunks trade places as the copy engine has
// it. Rows and columns of D follow that order.
constexpr bool TakesLinesSpread(const CudaRow& row) {
  return row.instruction.a == ElementType::kF64 && HasRing(row);
}
constexpr int SpreadLine(int line) { return line / 8 * 8 + line % 4 * 2 + line % 8 / 4; }

// A stage holds A's tiles, B's tiles and the metadata. Where the copy engine writes it, the stage
// starts on a multiple of the bytes from which the swizzle counts.
inline constexpr int kSwizzleBytes = 1024;
// Where f32 are split, there are two tiles of each operand, of the high parts and of the low ones.
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

// Shared memory holds the stages and what warps exchange; after the last step, the tile of
// accumulators takes their place. Two barriers for each stage follow, beyond the tile: other blocks
// may arrive at them to the end.
inline constexpr int kBarrierBytes = 16;
// So many tiles along k are between two looks for an abort (mainloop/abort.cuh): some 100 us of the
// quickest ones, so that a look over the bus costs nothing, and less than 20 ms of the slowest.
inline constexpr int kTilesBetweenLooks = 1024;
// After the barriers of a ring: how its end is told before the last tile (TilePipe).
inline constexpr int kStopBytes = 16;
//
// Warpgroups keep the stages full while they store D: each has room of its own after the stages,
// for as many columns of its instruction's rows as an instruction has in 16 bits.
// The copy engine takes blocks of each row from there: of 128 bytes, or of 64 where those are 64
// columns.
constexpr int BlockOfRowBytes(ElementType stored) { return BitsOf(stored) == 8 ? 64 : 128; }
constexpr int StoreBytes(const CudaRow& row) {
  return HasWarpgroups(row) && !IsNarrow(row) ? row.instruction.n * 2 * row.instruction_rows() : 0;
}
constexpr int BarriersOffset(const CudaRow& row) {
  if (HasWarpgroups(row)) return row.stages * StageBytes(row) + WarpgroupsOf(row) * StoreBytes(row);
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

// Whether a thread's sums leave registers for more than the usual epilogue in f32: 192 do not.
constexpr bool LeavesRegisters(const CudaRow& row) {
  return InstructionsDown(row) * row.instruction.n / 2 <= 128;
}

// Whether a warpgroup's registers suffice to finish sums where they are (register_epilogue.cuh),
// beside metadata or in f64.
constexpr bool HasRoomToFinish(const CudaRow& row) {
  const bool needs_more = row.instruction.is_sparse() || AccumulatorType(row) == ElementType::kS32;
  return HasWarpgroups(row) && (!needs_more || LeavesRegisters(row));
}

// Whether warpgroups can store elements of the type: sums as they are, usual floats, and of
// products of bytes fp8 or s8, whatever their own types are.
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

// Whether a narrow row computes D by its transpose, to put the longer side of D down.
constexpr bool Transposes(const CudaRow& row, int64_t m, int64_t n) {
  return IsNarrow(row) && m < n;
}

// The number of tiles above each other that cover m rows, in whole clusters.
constexpr int64_t TilesDown(const CudaRow& row, int64_t m) {
  const int64_t rows = int64_t{row.tile.m} * row.cluster;
  return (m + rows - 1) / rows * row.cluster;
}

// So many tiles above each other are successive: what runs at the same time then shares lines of A
// and B. Blocks that stay on their multiprocessors run in step, so the tiles of one round should
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
// Where several blocks share a multiprocessor, those that begin early crowd where there is room,
// and others stay without work: an H200 was up to 1.3 times slower.
constexpr bool BeginsEarly(const CudaRow& row, mma::Chip chip) {
  return HasRingOn(row, chip) && mma::HasEarlyLaunches(chip) &&
         BlocksPerMultiprocessor(row, chip) == 1;
}

}  // namespace gemmd
