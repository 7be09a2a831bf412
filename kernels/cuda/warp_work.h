// SPDX-License-Identifier: Apache-2.0
//
// Properties of a row per warp: its instructions, the fragments that it holds and loads ahead, and
// the threads and registers needed. Host and device share these facts.
#pragma once

#include <cstdint>

#include "kernels/cuda/row.h"
#include "kernels/mma/arithmetic.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/fragment.h"

namespace gemmd {

// Whether warpgroups, groups of four warps, multiply together.
constexpr bool TakesTurns(const CudaRow& row) { return row.pipeline == Pipeline::kTurns; }
constexpr bool HasWarpgroups(const CudaRow& row) {
  return row.pipeline == Pipeline::kWarpgroups || TakesTurns(row);
}
inline constexpr int kThreadsOfWarpgroup = 128;
constexpr int WarpgroupsOf(const CudaRow& row) { return row.threads() / kThreadsOfWarpgroup; }
// Warpgroups that share a tile.
constexpr int WarpgroupsOfTile(const CudaRow& row) {
  return TakesTurns(row) ? 1 : WarpgroupsOf(row);
}
// The warps that read a stage.
constexpr int WarpsOfTile(const CudaRow& row) {
  return TakesTurns(row) ? kThreadsOfWarpgroup / 32 : row.threads() / 32;
}

// Whether the row is for many tiny matrices: its blocks have few stages, so that several share a
// multiprocessor and hide each other's latency.
constexpr bool IsTiny(const CudaRow& row) {
  return HasWarpgroups(row) && row.tile.m <= 64 && row.stages <= 4;
}
// Whether the row is for a narrow D: its instructions have few columns. One warpgroup streams the
// wide operand through many small stages, and stores its sums itself.
constexpr bool IsNarrow(const CudaRow& row) {
  return HasWarpgroups(row) && row.tile.m <= 64 && !IsTiny(row);
}

// The part of the tile of a warp, or of a warpgroup, in instructions.
constexpr int InstructionsDown(const CudaRow& row) {
  const int parts = HasWarpgroups(row) ? WarpgroupsOfTile(row) : row.warps_m;
  return row.tile.m / parts / row.instruction_rows();
}
constexpr int InstructionsAcross(const CudaRow& row) {
  return row.tile.n / row.warps_n / row.instruction.n;
}
// Instructions along k in one step of the tile.
constexpr int StepsOfTile(const CudaRow& row) { return row.tile.k / row.instruction.k; }

// Whether an instruction whose A and B are all zeros may change an accumulator: chains of
// multiply-adds turn -0 into +0, and where C and D have different types, D is rounded to become C.
// Other instructions leave accumulators unchanged, so that k can be padded to whole tiles.
constexpr bool CountsEveryStep(const CudaRow& row) {
  const mma::Algorithm algorithm =
      mma::ArithmeticOf(row.instruction, ShapedFor(row.instruction)).algorithm;
  return StepsOfTile(row) > 1 &&
         (algorithm == mma::Algorithm::kMultiplyAdds ||
          algorithm == mma::Algorithm::kMultiplyAddsF64 || row.instruction.c != row.instruction.d);
}

// Whether D's elements are in other lanes than C's, so that sums move between lanes after each
// instruction, as in m8n8k4 from f16 to f32. Each warp has space for the sums after the stages.
constexpr bool SumsChangeLanes(const CudaRow& row) {
  return row.instruction.products() == 4 && row.instruction.c != row.instruction.d;
}
constexpr int ExchangeElements(const CudaRow& row) {
  return SumsChangeLanes(row) ? row.instruction_rows() * row.instruction.n : 0;
}

// The number of 32-bit registers in which a thread holds one operand's fragments of one step.
constexpr int FragmentRegisters(const CudaRow& row, mma::Operand operand) {
  const int count = operand == mma::Operand::kA   ? InstructionsDown(row)
                    : operand == mma::Operand::kB ? InstructionsAcross(row)
                                                  : InstructionsDown(row) * InstructionsAcross(row);
  return count * mma::WordsPerLane(row.instruction, operand);
}

// How many neighbouring instructions one load of an operand's fragments serves: ldmatrix loads four
// matrices of 8 lines of 16 bytes; f64 is loaded one element at a time.
constexpr int InstructionsOfLoad(const CudaRow& row, mma::Operand operand) {
  const mma::Instruction& instruction = row.instruction;
  if (instruction.a == ElementType::kF64) return 1;
  const bool is_a = operand == mma::Operand::kA;
  const int lines = is_a ? row.instruction_rows() : instruction.n;
  const int columns = is_a ? instruction.a_columns() : instruction.k;
  const int matrices = lines / 8 * (columns * mma::ContainerBits(instruction, operand) / 128);
  return matrices < 1 || matrices > 4 ? 1 : 4 / matrices;
}

// If fragments are loaded ahead, a thread keeps one operand's fragments for a whole step and
// streams the other operand: it holds two parts of it at a time, the one in use and the next one. A
// is streamed, so that successive instructions use the same registers of it; but B is streamed if
// A's fragments are few (compressed) or B's are many (f64).
constexpr mma::Operand StreamedOperand(const CudaRow& row) {
  return row.instruction.is_sparse() || row.instruction.a == ElementType::kF64 ? mma::Operand::kB
                                                                               : mma::Operand::kA;
}
constexpr int InstructionsAlong(const CudaRow& row, mma::Operand operand) {
  return operand == mma::Operand::kA ? InstructionsDown(row) : InstructionsAcross(row);
}
constexpr int StreamedParts(const CudaRow& row) {
  const mma::Operand operand = StreamedOperand(row);
  return InstructionsAlong(row, operand) / InstructionsOfLoad(row, operand);
}
// Whether a warp has so few fragments that it holds those of a whole tile along k. Each step's are
// replaced by the next tile's right after their use, so that the chain of a sum's instructions does
// not wait for loads: it decides the time of a narrow product with a long k.
constexpr bool HoldsTile(const CudaRow& row) {
  constexpr int kMaxFragments = 32;
  const int fragments =
      FragmentRegisters(row, mma::Operand::kA) + FragmentRegisters(row, mma::Operand::kB);
  return !row.instruction.is_sparse() && StepsOfTile(row) >= 4 &&
         StepsOfTile(row) * fragments <= kMaxFragments;
}
constexpr int RegistersAhead(const CudaRow& row) {
  if (HoldsTile(row)) {
    return StepsOfTile(row) *
           (FragmentRegisters(row, mma::Operand::kA) + FragmentRegisters(row, mma::Operand::kB));
  }
  const mma::Operand streamed = StreamedOperand(row);
  const mma::Operand kept = streamed == mma::Operand::kA ? mma::Operand::kB : mma::Operand::kA;
  return FragmentRegisters(row, kept) + FragmentRegisters(row, streamed) * 2 / StreamedParts(row) +
         (row.instruction.is_sparse() ? InstructionsDown(row) : 0);
}

// The registers of a multiprocessor, the max of a multiplying thread, and those of a thread that
// fills stages (MovesRegisters).
inline constexpr int kRegisters = 64 * 1024;
inline constexpr int kMaxRegisters = 240;
inline constexpr int kRegistersToFill = 24;

// Whether a row can have the ring: its instructions must be native, and the registers must suffice
// to load fragments ahead.
constexpr bool CanLoadAhead(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  if (!IsShapedNative(instruction) || instruction.family == mma::Family::kWmma ||
      CountsEveryStep(row) || LineAxisOf(instruction, mma::Operand::kA) != LineAxis::kK ||
      LineAxisOf(instruction, mma::Operand::kB) != LineAxis::kK ||
      (instruction.a == ElementType::kF64 && row.tile.k != 16)) {
    return false;
  }
  for (const mma::Operand operand : {mma::Operand::kA, mma::Operand::kB}) {
    if (InstructionsAlong(row, operand) % InstructionsOfLoad(row, operand) != 0) return false;
  }
  if (StepsOfTile(row) * StreamedParts(row) % 2 != 0) return false;
  constexpr int kOthers = 10;  // For addresses and counts: 10 were seen to suffice.
  return FragmentRegisters(row, mma::Operand::kD) + RegistersAhead(row) + kOthers <= kMaxRegisters;
}

// Whether the copy engine fills a ring of stages. Then fragments are loaded ahead of their
// instructions, or warpgroups read operands in place.
constexpr bool HasRing(const CudaRow& row) { return row.pipeline != Pipeline::kPlain; }

// The number of parts in which code that does not load ahead holds a warp's fragments of B, one
// part after the other.
constexpr int PartsOfB(const CudaRow& row) {
  return row.pipeline == Pipeline::kRing
             ? InstructionsAcross(row) / InstructionsOfLoad(row, mma::Operand::kB)
             : 1;
}

// Whether the code for a chip has the ring. It needs the copy engine, and registers, which a chip
// whose assembler expands the instruction lacks.
constexpr bool HasRingOn(const CudaRow& row, mma::Chip chip) {
  return HasRing(row) && mma::HasTileCopies(chip) &&
         mma::SupportOn(row.instruction, chip) == mma::Support::kNative;
}

// The number of blocks that share their tile of B: more than one only if the copy engine can write
// to several at once.
constexpr int ClusterOn(const CudaRow& row, mma::Chip chip) {
  return HasRingOn(row, chip) && mma::HasMulticast(chip) ? row.cluster : 1;
}

// If fragments are loaded ahead, an additional warp controls the copy engine. Eight multiplying
// warps may need the registers of three groups of four warps: then three idle warps are added to
// that warp, and these four give up their registers to the others.
constexpr bool MovesRegisters(const CudaRow& row, mma::Chip chip) {
  return HasRingOn(row, chip) && row.threads() == 256;
}
constexpr int ThreadsOfBlock(const CudaRow& row, mma::Chip chip) {
  if (!HasRingOn(row, chip)) return row.threads();
  return row.threads() + (MovesRegisters(row, chip) ? 128 : 32);
}

// All registers of a thread when the block starts.
constexpr int RegistersOf(const CudaRow& row, mma::Chip chip) {
  constexpr int kMax = 255;
  if (MovesRegisters(row, chip)) {
    const int each = kRegisters / ThreadsOfBlock(row, chip) / 8 * 8;
    return each < kMax ? each : kMax;
  }
  const bool is_native = mma::SupportOn(row.instruction, chip) == mma::Support::kNative;
  // Since sm_100, the assembler fills integer products of 8 rows up to 16 rows.
  const bool is_filled =
      mma::CapabilityOf(chip) >= 100 && row.instruction.m == 8 && IsInteger(row.instruction.a);
  const int filling = is_filled ? 2 : 1;
  const int fragments =
      HasRingOn(row, chip)
          ? RegistersAhead(row)
          : filling * FragmentRegisters(row, mma::Operand::kA) +
                FragmentRegisters(row, mma::Operand::kB) / PartsOfB(row) +
                (row.instruction.is_sparse() ? InstructionsDown(row) * StepsOfTile(row) : 0);
  // A chip since sm_100 that expands sparse products of bytes makes more instructions of them than
  // earlier chips do.
  const bool is_long = mma::CapabilityOf(chip) >= 100 && row.instruction.is_sparse();
  const int others = is_native ? 40 : is_long ? 200 : 120;
  const int totals = row.promotion_k > 0 ? FragmentRegisters(row, mma::Operand::kD) : 0;
  const int registers =
      filling * FragmentRegisters(row, mma::Operand::kD) + totals + fragments + others;
  return registers < kMax ? registers : kMax;
}

}  // namespace gemmd
