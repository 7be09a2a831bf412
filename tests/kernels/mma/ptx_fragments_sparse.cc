// SPDX-License-Identifier: Apache-2.0
//
// Sparse matrices and warpgroups. If the manual only has figures, the formula is that of the
// figure, register by register; recordings of sm_90 agree with all of them.
#include <array>

#include "tests/kernels/mma/ptx_fragments.h"

namespace gemmd {
namespace {

using mma::Instruction;
using mma::Operand;
using mma::Position;

// 9.7.14.6.2.1: B and the accumulators as m16n8k16.
PtxSparsePlace A16k16Halves(const PtxLane& lane, int i) {
  const int first = lane.thread_in_group * 4;
  return {i == 0 || i == 1 ? lane.group_id : lane.group_id + 8, first, first + 3};
}

// 9.7.14.6.2.2; B: figure 121, four registers of 8 rows.
PtxSparsePlace A16k32Halves(const PtxLane& lane, int i) {
  const bool is_upper = (0 <= i && i < 2) || (4 <= i && i < 6);
  const int first = i < 4 ? lane.thread_in_group * 4 : lane.thread_in_group * 4 + 16;
  return {is_upper ? lane.group_id : lane.group_id + 8, first, first + 3};
}
Position Bk32Halves(const PtxLane& lane, int i) {
  constexpr std::array kFirstRow = {0, 8, 16, 24};
  const int row = lane.thread_in_group * 2 + (i & 0x1);
  return {kFirstRow[static_cast<size_t>(i / 2)] + row, lane.group_id};
}

// 9.7.14.6.2.3; B: figure 124, four registers of 4 rows.
PtxSparsePlace A16k16Words(const PtxLane& lane, int i) {
  const int first = i == 0 || i == 1 ? lane.thread_in_group * 2 : lane.thread_in_group * 2 + 8;
  return {i == 0 || i == 2 ? lane.group_id : lane.group_id + 8, first, first + 1};
}
Position Bk16Words(const PtxLane& lane, int i) {
  constexpr std::array kFirstRow = {0, 4, 8, 12};
  return {kFirstRow[static_cast<size_t>(i)] + lane.thread_in_group, lane.group_id};
}

// 9.7.14.6.2.4: B as m16n8k8.
PtxSparsePlace A16k8Words(const PtxLane& lane, int i) {
  const int first = lane.thread_in_group * 2;
  return {i == 0 ? lane.group_id : lane.group_id + 8, first, first + 1};
}

// 9.7.14.6.2.5: B as m16n8k32.
PtxSparsePlace A16k32Bytes(const PtxLane& lane, int i) {
  const int first = lane.thread_in_group * 8;
  return {0 <= i && i < 4 ? lane.group_id : lane.group_id + 8, first, first + 7};
}

// 9.7.14.6.2.6; B: figures 132 to 135, rows 0-15, 16-31, 32-47 and 48-63.
PtxSparsePlace A16k64Bytes(const PtxLane& lane, int i) {
  const bool is_upper = (0 <= i && i < 4) || (8 <= i && i < 12);
  const int first = i < 8 ? lane.thread_in_group * 8 : lane.thread_in_group * 8 + 32;
  return {is_upper ? lane.group_id : lane.group_id + 8, first, first + 7};
}
Position Bk64Bytes(const PtxLane& lane, int i) {
  constexpr std::array kFirstRow = {0, 16, 32, 48};
  const int row = lane.thread_in_group * 4 + (i & 0x3);
  return {kFirstRow[static_cast<size_t>(i / 4)] + row, lane.group_id};
}

// 9.7.14.6.2.7: B as m16n8k64.
PtxSparsePlace A16k64Nibbles(const PtxLane& lane, int i) {
  const int first = lane.thread_in_group * 16;
  return {0 <= i && i < 8 ? lane.group_id : lane.group_id + 8, first, first + 15};
}

// 9.7.14.6.2.8; B: figures 142 to 145, rows 0-31, 32-63, 64-95 and 96-127.
PtxSparsePlace A16k128Nibbles(const PtxLane& lane, int i) {
  const bool is_upper = (0 <= i && i < 8) || (16 <= i && i < 24);
  const int first = i < 16 ? lane.thread_in_group * 16 : lane.thread_in_group * 16 + 64;
  return {is_upper ? lane.group_id : lane.group_id + 8, first, first + 15};
}
Position Bk128Nibbles(const PtxLane& lane, int i) {
  constexpr std::array kFirstRow = {0, 32, 64, 96};
  const int row = lane.thread_in_group * 8 + (i & 0x7);
  return {kFirstRow[static_cast<size_t>(i / 8)] + row, lane.group_id};
}

constexpr std::array kChapters = {
    PtxSparseChapter{"9.7.14.6.2.1", 16, 16, A16k16Halves, PtxBk16Halves, PtxC16},
    PtxSparseChapter{"9.7.14.6.2.2", 32, 16, A16k32Halves, Bk32Halves, PtxC16},
    PtxSparseChapter{"9.7.14.6.2.3", 16, 32, A16k16Words, Bk16Words, PtxC16},
    PtxSparseChapter{"9.7.14.6.2.4", 8, 32, A16k8Words, PtxBk8Words, PtxC16},
    PtxSparseChapter{"9.7.14.6.2.5", 32, 8, A16k32Bytes, PtxBk32Bytes, PtxC16},
    PtxSparseChapter{"9.7.14.6.2.6", 64, 8, A16k64Bytes, Bk64Bytes, PtxC16},
    PtxSparseChapter{"9.7.14.6.2.7", 64, 4, A16k64Nibbles, PtxBk64Nibbles, PtxC16},
    PtxSparseChapter{"9.7.14.6.2.8", 128, 4, A16k128Nibbles, Bk128Nibbles, PtxC16},
};

}  // namespace

const PtxSparseChapter* FindPtxSparseChapter(const Instruction& instruction) {
  if (instruction.family != mma::Family::kMmaSparse) return nullptr;
  const int bits = mma::ContainerBits(instruction, Operand::kA);
  for (const PtxSparseChapter& chapter : kChapters) {
    if (chapter.k == instruction.k && chapter.bits == bits) return &chapter;
  }
  return nullptr;
}

// 9.7.15.5.1.1, figures 148, 150, 152 and 154: every warp holds 16 rows in four registers, the
// upper eight rows first, then the lower ones, then both again half of the columns further right.
Position PtxWarpgroupA(const Instruction& instruction, int thread, int i) {
  constexpr std::array kRowOfRegister = {0, 8, 0, 8};
  const PtxLane lane(thread);
  const int per_register = 32 / BitsOf(instruction.a);
  const int held_columns = instruction.is_sparse() ? instruction.k / 2 : instruction.k;
  const auto at = static_cast<size_t>(i / per_register);
  return {16 * lane.warp + lane.group_id + kRowOfRegister[at],
          (at < 2 ? 0 : held_columns / 2) + lane.thread_in_group * per_register + i % per_register};
}

// Figures 149, 151, 153 and 155: d0 and d1 in one row, d2 and d3 eight rows below; then the same in
// the next eight columns. f16 has two elements to a register.
Position PtxWarpgroupD(const Instruction& instruction, Operand operand, int thread, int i) {
  const PtxLane lane(thread);
  const int row = 16 * lane.warp + lane.group_id;
  if (mma::TypeOf(instruction, operand) == ElementType::kF16) {
    const int r = i / 2;
    const int j = i % 2;
    return {row + 8 * (r & 1), 8 * (r >> 1) + 2 * lane.thread_in_group + j};
  }
  return {row + 8 * ((i >> 1) & 1), 8 * (i >> 2) + 2 * lane.thread_in_group + (i & 1)};
}

}  // namespace gemmd
