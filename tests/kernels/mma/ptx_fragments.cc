// SPDX-License-Identifier: Apache-2.0
//
// Sections are those of PTX ISA 9.0. Every formula is written as in the manual, the indices of low
// bits with masks ("i & 0x1"), however similar they look.
#include "tests/kernels/mma/ptx_fragments.h"

#include <array>

namespace gemmd {
namespace {

using mma::Family;
using mma::Instruction;
using mma::Operand;
using mma::Position;

// Accumulators of m8: one row of a lane's group.
Position C8(const PtxLane& lane, int i) {
  return {lane.group_id, lane.thread_in_group * 2 + (i & 0x1)};
}

// 9.7.14.5.2, 9.7.14.5.6: one element, or one for each half of the rows.
Position A8k4(const PtxLane& lane, int) { return {lane.group_id, lane.thread_in_group}; }
Position A16k4(const PtxLane& lane, int i) {
  return {i == 0 ? lane.group_id : lane.group_id + 8, lane.thread_in_group};
}
Position Bk4(const PtxLane& lane, int) { return {lane.thread_in_group, lane.group_id}; }

// 9.7.14.5.3, 9.7.14.5.4, 9.7.14.5.5.
Position A8k16Bytes(const PtxLane& lane, int i) {
  return {lane.group_id, lane.thread_in_group * 4 + i};
}
Position Bk16Bytes(const PtxLane& lane, int i) {
  return {lane.thread_in_group * 4 + i, lane.group_id};
}
Position A8k32Nibbles(const PtxLane& lane, int i) {
  return {lane.group_id, lane.thread_in_group * 8 + i};
}
Position Bk32Nibbles(const PtxLane& lane, int i) {
  return {lane.thread_in_group * 8 + i, lane.group_id};
}
Position A8k128Bits(const PtxLane& lane, int i) {
  return {lane.group_id, lane.thread_in_group * 32 + i};
}
Position Bk128Bits(const PtxLane& lane, int i) {
  return {lane.thread_in_group * 32 + i, lane.group_id};
}

// 9.7.14.5.7: f16 and bf16; tf32 and f64.
Position A16k8Halves(const PtxLane& lane, int i) {
  return {i == 0 || i == 1 ? lane.group_id : lane.group_id + 8,
          lane.thread_in_group * 2 + (i & 0x1)};
}
Position Bk8Halves(const PtxLane& lane, int i) {
  return {lane.thread_in_group * 2 + i, lane.group_id};
}
Position A16k8Words(const PtxLane& lane, int i) {
  return {i == 0 || i == 2 ? lane.group_id : lane.group_id + 8,
          i == 0 || i == 1 ? lane.thread_in_group : lane.thread_in_group + 4};
}

// 9.7.14.5.8: f16 and bf16; f64.
Position A16k16Halves(const PtxLane& lane, int i) {
  const bool is_upper = (0 <= i && i < 2) || (4 <= i && i < 6);
  const int column = lane.thread_in_group * 2 + (i & 0x1);
  return {is_upper ? lane.group_id : lane.group_id + 8, i < 4 ? column : column + 8};
}
Position A16k16F64(const PtxLane& lane, int i) {
  return i % 2 == 0 ? Position{lane.group_id, i * 2 + lane.thread_in_group}
                    : Position{lane.group_id + 8, i * 2 - 2 + lane.thread_in_group};
}
Position Bk16F64(const PtxLane& lane, int i) {
  return {lane.thread_in_group + i * 4, lane.group_id};
}

// 9.7.14.5.9.
Position A16k16Bytes(const PtxLane& lane, int i) {
  return {i < 4 ? lane.group_id : lane.group_id + 8, lane.thread_in_group * 4 + (i & 0x3)};
}

// 9.7.14.5.10: 4-bit integers; bytes.
Position A16k32Nibbles(const PtxLane& lane, int i) {
  return {i < 8 ? lane.group_id : lane.group_id + 8, lane.thread_in_group * 8 + (i & 0x7)};
}
Position A16k32Bytes(const PtxLane& lane, int i) {
  const bool is_upper = (0 <= i && i < 4) || (8 <= i && i < 12);
  const int column = lane.thread_in_group * 4 + (i & 0x3);
  return {is_upper ? lane.group_id : lane.group_id + 8, i < 8 ? column : column + 16};
}

// 9.7.14.5.11.
Position A16k64Nibbles(const PtxLane& lane, int i) {
  const bool is_upper = (0 <= i && i < 8) || (16 <= i && i < 24);
  const int column = lane.thread_in_group * 8 + (i & 0x7);
  return {is_upper ? lane.group_id : lane.group_id + 8, i < 16 ? column : column + 32};
}

// 9.7.14.5.12.
Position A16k128Bits(const PtxLane& lane, int i) {
  return {i < 32 ? lane.group_id : lane.group_id + 8, lane.thread_in_group * 32 + (i & 0x1F)};
}

// 9.7.14.5.13. The manual prints "+ i" without the mask for the columns of ai where i < 64, which
// exceeds the matrix for i >= 32; its figure 100 has the mask.
Position A16k256Bits(const PtxLane& lane, int i) {
  const bool is_upper = (0 <= i && i < 32) || (64 <= i && i < 96);
  const int column = lane.thread_in_group * 32 + (i & 0x1F);
  return {is_upper ? lane.group_id : lane.group_id + 8, i < 64 ? column : column + 128};
}
Position Bk256Bits(const PtxLane& lane, int i) {
  const int row = lane.thread_in_group * 32 + (i & 0x1F);
  return {i < 32 ? row : row + 128, lane.group_id};
}

constexpr Family kMma = Family::kMma;
constexpr std::array kChapters = {
    PtxChapter{"9.7.14.5.2", kMma, 8, 4, 64, A8k4, Bk4, C8},
    PtxChapter{"9.7.14.5.3", kMma, 8, 16, 8, A8k16Bytes, Bk16Bytes, C8},
    PtxChapter{"9.7.14.5.4", kMma, 8, 32, 4, A8k32Nibbles, Bk32Nibbles, C8},
    PtxChapter{"9.7.14.5.5", kMma, 8, 128, 1, A8k128Bits, Bk128Bits, C8},
    PtxChapter{"9.7.14.5.6 tf32", kMma, 16, 4, 32, A16k4, Bk4, PtxC16},
    PtxChapter{"9.7.14.5.6 f64", kMma, 16, 4, 64, A16k4, Bk4, PtxC16},
    PtxChapter{"9.7.14.5.7 f16", kMma, 16, 8, 16, A16k8Halves, Bk8Halves, PtxC16},
    PtxChapter{"9.7.14.5.7 tf32", kMma, 16, 8, 32, A16k8Words, PtxBk8Words, PtxC16},
    PtxChapter{"9.7.14.5.7 f64", kMma, 16, 8, 64, A16k8Words, PtxBk8Words, PtxC16},
    PtxChapter{"9.7.14.5.8 f16", kMma, 16, 16, 16, A16k16Halves, PtxBk16Halves, PtxC16},
    PtxChapter{"9.7.14.5.8 f64", kMma, 16, 16, 64, A16k16F64, Bk16F64, PtxC16},
    PtxChapter{"9.7.14.5.9", kMma, 16, 16, 8, A16k16Bytes, Bk16Bytes, PtxC16},
    PtxChapter{"9.7.14.5.10 s4", kMma, 16, 32, 4, A16k32Nibbles, Bk32Nibbles, PtxC16},
    PtxChapter{"9.7.14.5.10 s8", kMma, 16, 32, 8, A16k32Bytes, PtxBk32Bytes, PtxC16},
    PtxChapter{"9.7.14.5.11", kMma, 16, 64, 4, A16k64Nibbles, PtxBk64Nibbles, PtxC16},
    PtxChapter{"9.7.14.5.12", kMma, 16, 128, 1, A16k128Bits, Bk128Bits, PtxC16},
    PtxChapter{"9.7.14.5.13", kMma, 16, 256, 1, A16k256Bits, Bk256Bits, PtxC16},
};

}  // namespace

// Accumulators of m16: "groupID for ci where i < 2, groupID + 8 for ci where i >= 2".
Position PtxC16(const PtxLane& lane, int i) {
  return {i < 2 ? lane.group_id : lane.group_id + 8, lane.thread_in_group * 2 + (i & 0x1)};
}

Position PtxBk16Halves(const PtxLane& lane, int i) {
  const int row = lane.thread_in_group * 2 + (i & 0x1);
  return {i < 2 ? row : row + 8, lane.group_id};
}

Position PtxBk8Words(const PtxLane& lane, int i) {
  return {i == 0 ? lane.thread_in_group : lane.thread_in_group + 4, lane.group_id};
}

Position PtxBk32Bytes(const PtxLane& lane, int i) {
  const int row = lane.thread_in_group * 4 + (i & 0x3);
  return {i < 4 ? row : row + 16, lane.group_id};
}

Position PtxBk64Nibbles(const PtxLane& lane, int i) {
  const int row = lane.thread_in_group * 8 + (i & 0x7);
  return {i < 8 ? row : row + 32, lane.group_id};
}

const PtxChapter* FindPtxChapter(const Instruction& instruction) {
  const int bits = mma::ContainerBits(instruction, Operand::kA);
  for (const PtxChapter& chapter : kChapters) {
    if (chapter.family == instruction.family && chapter.m == instruction.m &&
        chapter.k == instruction.k && chapter.bits == bits) {
      return &chapter;
    }
  }
  return nullptr;
}

// 9.7.14.5.1.
Position PtxM8n8k4F16(const Instruction& instruction, Operand operand, int thread, int i) {
  const int laneid = thread;
  const bool is_low = laneid < 16;  // The low group of the computation's threads.
  const int product = laneid % 16 / 4;
  if (operand == Operand::kA && instruction.a_layout == mma::Layout::kRow) {
    return {is_low ? laneid % 4 : laneid % 4 + 4, i, product};
  }
  if (operand == Operand::kA) return {is_low ? i % 4 : i % 4 + 4, laneid % 4, product};
  if (operand == Operand::kB && instruction.b_layout == mma::Layout::kRow) {
    return {laneid % 4, is_low ? i : i + 4, product};
  }
  if (operand == Operand::kB) return {i, is_low ? laneid % 4 : laneid % 4 + 4, product};
  if (mma::TypeOf(instruction, operand) == ElementType::kF16) {
    return {is_low ? laneid % 4 : laneid % 4 + 4, i, product};
  }
  const int x = (laneid & 0b1) + (i & 0b10);
  return {is_low ? x : x + 4, (i & 0b100) + (laneid & 0b10) + (i & 0b1), product};
}

}  // namespace gemmd
