// SPDX-License-Identifier: Apache-2.0
//
// The fragment layouts as the chapters of the PTX manual state them, shape by shape and type by
// type, word for word. kernels/mma/fragment.h has one rule for all of them instead, and tests
// compare both.
#pragma once

#include <string_view>

#include "kernels/mma/fragment.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

// "groupID = %laneid >> 2, threadID_in_group = %laneid % 4", of the thread's warp.
struct PtxLane {
  explicit constexpr PtxLane(int thread)
      : laneid(thread % 32),
        warp(thread / 32),
        group_id(laneid >> 2),
        thread_in_group(laneid % 4) {}

  int laneid;
  int warp;
  int group_id;
  int thread_in_group;
};

// Where element i of a lane is.
using PtxRule = mma::Position (*)(const PtxLane& lane, int i);

// The layouts that the chapters on sparse matrices reuse: the accumulators of m16, and B of
// m16n8k16 (f16), m16n8k8 (tf32), m16n8k32 (s8) and m16n8k64 (s4).
mma::Position PtxC16(const PtxLane& lane, int i);
mma::Position PtxBk16Halves(const PtxLane& lane, int i);
mma::Position PtxBk8Words(const PtxLane& lane, int i);
mma::Position PtxBk32Bytes(const PtxLane& lane, int i);
mma::Position PtxBk64Nibbles(const PtxLane& lane, int i);

// A chapter on one shape and the operand types of one width.
struct PtxChapter {
  std::string_view section;
  mma::Family family;
  int m;
  int k;
  int bits;  // The bits that an element of A or B takes in its register.
  PtxRule a;
  PtxRule b;
  PtxRule c;
};

// The chapter of an instruction; null for m8n8k4 with f16, which has its own function, for wmma,
// whose layout the manual does not define, and for sparse instructions.
const PtxChapter* FindPtxChapter(const mma::Instruction& instruction);

// m8n8k4 with f16: four products; the layouts of A and B and the type of C determine the position.
mma::Position PtxM8n8k4F16(const mma::Instruction& instruction, mma::Operand operand, int thread,
                           int i);

// For a sparse A the manual gives the row, and the logical columns among which the kept element is.
struct PtxSparsePlace {
  int row;
  int first_column;
  int last_column;
};
using PtxSparseRule = PtxSparsePlace (*)(const PtxLane& lane, int i);

struct PtxSparseChapter {
  std::string_view section;
  int k;
  int bits;
  PtxSparseRule a;
  PtxRule b;
  PtxRule c;
};

// Null if the instruction is not an mma.sp.
const PtxSparseChapter* FindPtxSparseChapter(const mma::Instruction& instruction);

// For the registers of a warpgroup the manual has only figures.
mma::Position PtxWarpgroupA(const mma::Instruction& instruction, int thread, int i);
mma::Position PtxWarpgroupD(const mma::Instruction& instruction, mma::Operand operand, int thread,
                            int i);

}  // namespace gemmd
