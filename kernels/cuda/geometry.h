// SPDX-License-Identifier: Apache-2.0
//
// What follows from a row alone: how its tiles lie in shared memory and what each warp does. Host
// and device share it.
#pragma once

#include <cstdint>

#include "kernels/cuda/row.h"
#include "kernels/mma/arithmetic.h"
#include "kernels/mma/fragment.h"
#include "kernels/mma/support.h"

namespace gemmd {

// The type of accumulators as the epilogue gets them: f32 (also of f16), f64 or s32.
constexpr ElementType AccumulatorType(const CudaRow& row) {
  return row.instruction.d == ElementType::kF16 ? ElementType::kF32 : row.instruction.d;
}

// Of the tile of accumulators in shared memory, in elements: two more than its columns, so that its
// columns as well as its rows lie in all banks.
constexpr int AccumulatorStride(const CudaRow& row) { return row.tile.n + 2; }

// A warp's part of the tile, in instructions.
constexpr int InstructionsDown(const CudaRow& row) {
  return row.tile.m / row.warps_m / row.instruction_rows();
}
constexpr int InstructionsAcross(const CudaRow& row) {
  return row.tile.n / row.warps_n / row.instruction.n;
}
// Instructions along k in one step of the tile.
constexpr int StepsOfTile(const CudaRow& row) { return row.tile.k / row.instruction.k; }

// Whether an instruction with nothing but zeros as A and B may change an accumulator: chains of
// multiply-adds turn -0 into +0, and where C and D have different types D is rounded to be C.
// Others leave it as it is, so that whole tiles can be done.
constexpr bool CountsEveryStep(const CudaRow& row) {
  const mma::Algorithm algorithm =
      mma::ArithmeticOf(row.instruction, ShapedFor(row.instruction)).algorithm;
  return StepsOfTile(row) > 1 &&
         (algorithm == mma::Algorithm::kMultiplyAdds ||
          algorithm == mma::Algorithm::kMultiplyAddsF64 || row.instruction.c != row.instruction.d);
}

// Whether D's elements are in other lanes than C's, so that sums change lanes between instructions:
// m8n8k4 from f16 to f32. Each warp has room for them behind the stages.
constexpr bool SumsChangeLanes(const CudaRow& row) {
  return row.instruction.products() == 4 && row.instruction.c != row.instruction.d;
}
constexpr int ExchangeElements(const CudaRow& row) {
  return SumsChangeLanes(row) ? row.instruction_rows() * row.instruction.n : 0;
}

// Registers of 32 bits that a thread holds for one operand's fragments of one step.
constexpr int FragmentRegisters(const CudaRow& row, mma::Operand operand) {
  const int count = operand == mma::Operand::kA   ? InstructionsDown(row)
                    : operand == mma::Operand::kB ? InstructionsAcross(row)
                                                  : InstructionsDown(row) * InstructionsAcross(row);
  return count * mma::WordsPerLane(row.instruction, operand);
}

inline constexpr int kMostRegisters = 255;

// How many of B's instructions one load of fragments serves: ldmatrix brings 64 bytes of a lane's
// line, f64 comes by single elements.
constexpr int InstructionsOfLoad(const CudaRow& row) {
  if (row.instruction.a == ElementType::kF64) return 1;
  const int bytes = row.instruction.k * mma::ContainerBits(row.instruction, mma::Operand::kB) / 8;
  return bytes < 64 ? 64 / bytes : 1;
}

// Whether fragments are loaded ahead of the instructions that take them: where those are the
// tensor core's own and the registers suffice. B comes in parts, the next one before the
// instructions of this one; a row of A as soon as the last part has taken the one before it.
constexpr bool LoadsAhead(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  const int of_load = InstructionsOfLoad(row);
  if (!IsShapedNative(instruction) || instruction.family == mma::Family::kWmma ||
      CountsEveryStep(row) || LineAxisOf(instruction, mma::Operand::kA) != LineAxis::kK ||
      LineAxisOf(instruction, mma::Operand::kB) != LineAxis::kK ||
      (instruction.a == ElementType::kF64 && row.tile.k != 16) ||
      InstructionsAcross(row) % of_load != 0 ||
      StepsOfTile(row) * (InstructionsAcross(row) / of_load) % 2 != 0) {
    return false;
  }
  constexpr int kOthers = 24;  // Addresses and counts, as the compiler was seen to use.
  const int of_b =
      FragmentRegisters(row, mma::Operand::kB) / (InstructionsAcross(row) / of_load) * 2;
  const int of_metadata = instruction.is_sparse() ? InstructionsDown(row) : 0;
  return FragmentRegisters(row, mma::Operand::kD) + FragmentRegisters(row, mma::Operand::kA) +
             of_b + of_metadata + kOthers <=
         kMostRegisters;
}

// In how many parts a warp's fragments of B are held, one after the other.
constexpr int PartsOfB(const CudaRow& row) {
  return LoadsAhead(row) ? InstructionsAcross(row) / InstructionsOfLoad(row) : 1;
}

// Whether the code for a chip loads ahead, which takes the copy engine; what a chip's assembler
// expands leaves no registers for it.
constexpr bool LoadsAheadOn(const CudaRow& row, mma::Chip chip) {
  return LoadsAhead(row) && mma::HasTileCopies(chip) &&
         mma::SupportOn(row.instruction, chip) == mma::Support::kNative;
}

// Blocks that share their tile of B, where the copy engine writes to several at once.
constexpr int ClusterOn(const CudaRow& row, mma::Chip chip) {
  return LoadsAheadOn(row, chip) && mma::HasMulticast(chip) ? row.cluster : 1;
}

// Registers of a thread, in all.
constexpr int RegistersOf(const CudaRow& row, mma::Chip chip) {
  const bool is_native = mma::SupportOn(row.instruction, chip) == mma::Support::kNative;
  const bool is_ahead = LoadsAheadOn(row, chip);
  // Since sm_100 the assembler fills up integer products of 8 rows to 16.
  const bool is_filled =
      mma::CapabilityOf(chip) >= 100 && row.instruction.m == 8 && IsInteger(row.instruction.a);
  const int filling = is_filled ? 2 : 1;
  const int metadata =
      row.instruction.is_sparse() ? InstructionsDown(row) * (is_ahead ? 1 : StepsOfTile(row)) : 0;
  const int registers =
      filling *
          (FragmentRegisters(row, mma::Operand::kD) + FragmentRegisters(row, mma::Operand::kA)) +
      FragmentRegisters(row, mma::Operand::kB) / PartsOfB(row) * (is_ahead ? 2 : 1) + metadata +
      (is_native ? 40 : 120);
  return registers < kMostRegisters ? registers : kMostRegisters;
}

// Words of a lane that a sparse A's instruction takes come with the tile where fragments are loaded
// ahead: for each row of instructions those of the steps.
constexpr int MetadataLineBytes(const CudaRow& row) { return StepsOfTile(row) * 32 * 4; }
constexpr int MetadataBytes(const CudaRow& row) {
  return row.instruction.is_sparse() && LoadsAhead(row)
             ? row.tile.m / row.instruction.m * MetadataLineBytes(row)
             : 0;
}

// One operand's tile of one stage in shared memory: lines of whole chunks of 16 bytes.
//
// Chunks of a line trade places (swizzle), so that a warp that reads the same chunk of eight lines
// beside each other, or a lane's f64 of four, meets every bank once. Lines that wmma.load reads,
// which knows nothing of that, are padded instead. The copy engine has no swizzle for f64: where it
// copies, fragments take lines in another order (SpreadLine).
struct TileLines {
  LineAxis axis;
  int lines;
  int line_bytes;
  bool is_f64;  // And has the swizzle for that.
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
  // Of byte `byte` (of the line) of a line.
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
          bits == 64 && !LoadsAhead(row), row.instruction.family == mma::Family::kWmma};
}

// Whether fragments of f64 take lines of eight in this order, so that a lane's f64 of four lines
// meet every bank once where chunks trade places as the copy engine has it. Rows and columns of D
// with them.
constexpr bool TakesLinesSpread(const CudaRow& row) {
  return row.instruction.a == ElementType::kF64 && LoadsAhead(row);
}
constexpr int SpreadLine(int line) { return line / 8 * 8 + line % 4 * 2 + line % 8 / 4; }

// A stage holds A's tile, B's and the metadata. Where the copy engine writes it starts on a
// multiple of what the swizzle counts from.
inline constexpr int kSwizzleBytes = 1024;
constexpr int TileBytes(const CudaRow& row) {
  return TileLinesOf(row, mma::Operand::kA).bytes() + TileLinesOf(row, mma::Operand::kB).bytes() +
         MetadataBytes(row);
}
constexpr int StageBytes(const CudaRow& row) {
  if (!LoadsAhead(row)) return TileBytes(row);
  return (TileBytes(row) + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
}

// Of the two barriers of each stage.
inline constexpr int kBarrierBytes = 16;

// Shared memory holds the stages with their barriers and what warps exchange, and after the last
// step the tile of accumulators.
constexpr int SharedBytes(const CudaRow& row) {
  const int stages =
      row.stages * (StageBytes(row) + kBarrierBytes) +
      row.warps_m * row.warps_n * ExchangeElements(row) * BitsOf(ElementType::kF32) / 8;
  const int accumulators = row.tile.m * AccumulatorStride(row) * BitsOf(AccumulatorType(row)) / 8;
  return stages > accumulators ? stages : accumulators;
}

// Tiles above each other that cover m rows, in whole clusters.
constexpr int64_t TilesDown(const CudaRow& row, int64_t m) {
  const int64_t rows = int64_t{row.tile.m} * row.cluster;
  return (m + rows - 1) / rows * row.cluster;
}

// Whether a chip can run the row; there is no code of it for others.
constexpr bool RunsOn(const CudaRow& row, mma::Chip chip) {
  return mma::SupportOn(row.instruction, chip) != mma::Support::kUnavailable &&
         mma::HasAsyncCopies(chip) && SharedBytes(row) <= mma::SharedBytesOf(chip);
}

// Blocks that share a multiprocessor: as many as have the shared memory and the registers.
constexpr int BlocksPerMultiprocessor(const CudaRow& row, mma::Chip chip) {
  constexpr int kReservedBytes = 1024;  // Of each block, by the system.
  constexpr int kRegisters = 64 * 1024;
  const int by_memory = mma::SharedBytesOf(chip) / (SharedBytes(row) + kReservedBytes);
  const int by_registers = kRegisters / (row.threads() * RegistersOf(row, chip));
  const int least = by_memory < by_registers ? by_memory : by_registers;
  return least < 1 ? 1 : least;
}

}  // namespace gemmd
