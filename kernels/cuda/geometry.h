// SPDX-License-Identifier: Apache-2.0
//
// What follows from a row alone: how its tiles lie in shared memory and what each warp does. Host
// and device share it.
#pragma once

#include "kernels/cuda/row.h"
#include "kernels/mma/arithmetic.h"
#include "kernels/mma/fragment.h"
#include "kernels/mma/support.h"

namespace gemmd {

// One operand's tile of one stage in shared memory: lines of whole chunks of 16 bytes.
//
// Chunks of a line trade places (swizzle), so that a warp that reads the same chunk of eight lines
// beside each other, or a lane's f64 of four, meets every bank once. Lines that wmma.load reads,
// which knows nothing of that, are padded instead.
struct TileLines {
  LineAxis axis;
  int lines;
  int line_bytes;
  bool is_f64;
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
  return {axis, is_along_k ? across : along, (is_along_k ? along : across) * bits / 8, bits == 64,
          row.instruction.family == mma::Family::kWmma};
}

constexpr int StageBytes(const CudaRow& row) {
  return TileLinesOf(row, mma::Operand::kA).bytes() + TileLinesOf(row, mma::Operand::kB).bytes();
}

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

// Registers of 32 bits that a thread holds for one operand's fragments of one step.
constexpr int FragmentRegisters(const CudaRow& row, mma::Operand operand) {
  const int count = operand == mma::Operand::kA   ? InstructionsDown(row)
                    : operand == mma::Operand::kB ? InstructionsAcross(row)
                                                  : InstructionsDown(row) * InstructionsAcross(row);
  return count * mma::WordsPerLane(row.instruction, operand);
}

constexpr int MetadataRegisters(const CudaRow& row) {
  return row.instruction.is_sparse() ? InstructionsDown(row) * StepsOfTile(row) : 0;
}

// Registers of a thread: what it holds, and addresses and counts, as the compiler was seen to use.
// `sets` of fragments are held at a time, B in `parts`.
constexpr int RegistersOf(const CudaRow& row, mma::Chip chip, int sets, int parts) {
  const bool is_native = mma::SupportOn(row.instruction, chip) == mma::Support::kNative;
  const int others = is_native ? 46 : 120;
  // Since sm_100 the assembler fills up integer products of 8 rows to 16.
  const bool is_filled =
      mma::CapabilityOf(chip) >= 100 && row.instruction.m == 8 && IsInteger(row.instruction.a);
  const int filling = is_filled ? 2 : 1;
  return filling * FragmentRegisters(row, mma::Operand::kD) + MetadataRegisters(row) + others +
         sets * (filling * FragmentRegisters(row, mma::Operand::kA) +
                 FragmentRegisters(row, mma::Operand::kB) / parts);
}

inline constexpr int kMostRegisters = 255;

// How fragments are loaded: a step ahead of the instructions, or just before them; and B's whole or
// in parts.
struct FragmentPlan {
  bool is_ahead;
  int parts;
};

// A step ahead where the instructions are the tensor core's own and registers are left.
constexpr FragmentPlan FragmentPlanOf(const CudaRow& row) {
  const bool may_be_ahead = IsShapedNative(row.instruction) && !CountsEveryStep(row) &&
                            row.instruction.a != ElementType::kF64 &&
                            row.instruction.family != mma::Family::kWmma &&
                            StepsOfTile(row) % 2 == 0;
  for (int parts = 1; parts <= 2 && InstructionsAcross(row) % (2 * parts) == 0; ++parts) {
    if (may_be_ahead && RegistersOf(row, ShapedFor(row.instruction), 2, parts) <= kMostRegisters) {
      return {true, parts};
    }
  }
  return {false, 1};
}

constexpr bool LoadsAhead(const CudaRow& row) { return FragmentPlanOf(row).is_ahead; }
constexpr int PartsOfB(const CudaRow& row) { return FragmentPlanOf(row).parts; }

// Whether the code for a chip loads ahead, which takes the copy engine; what a chip's assembler
// expands leaves no registers for it.
constexpr bool LoadsAheadOn(const CudaRow& row, mma::Chip chip) {
  return LoadsAhead(row) && mma::HasTileCopies(chip) &&
         mma::SupportOn(row.instruction, chip) == mma::Support::kNative;
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
  const int by_registers =
      kRegisters /
      (row.threads() * RegistersOf(row, chip, LoadsAheadOn(row, chip) ? 2 : 1, PartsOfB(row)));
  const int least = by_memory < by_registers ? by_memory : by_registers;
  return least < 1 ? 1 : least;
}

}  // namespace gemmd
