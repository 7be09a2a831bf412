// SPDX-License-Identifier: Apache-2.0
#include "kernels/mma/fragment.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <ostream>
#include <set>
#include <string>
#include <string_view>

#include "kernels/mma/instructions.h"
#include "tests/kernels/mma/ptx_fragments.h"

namespace gemmd::mma {

void PrintTo(const Position& position, std::ostream* out) {
  *out << "row " << position.row << ", column " << position.column << ", product "
       << position.product;
}

}  // namespace gemmd::mma

namespace gemmd {
namespace {

using mma::Instruction;
using mma::kInstructions;
using mma::Operand;
using mma::Position;

constexpr std::array kOperands = {Operand::kA, Operand::kB, Operand::kC, Operand::kD};

std::string Describe(const Instruction& instruction, Operand operand, int lane, int i) {
  return std::string(mma::NameOf(instruction).view()) + ", operand " +
         "ABCD"[static_cast<size_t>(operand)] + ", lane " + std::to_string(lane) + ", element " +
         std::to_string(i);
}

bool HasFragment(const Instruction& instruction, Operand operand) {
  return !(instruction.is_warpgroup() && operand == Operand::kB);
}

// Whether the lanes hold every element of every product, each as often as CopiesOf says and none
// outside the matrix.
constexpr bool CoversExactly(const Instruction& instruction, Operand operand) {
  constexpr size_t kMaxElements = 64 * 256;
  std::array<uint8_t, kMaxElements> count = {};
  const int rows = mma::RowsOf(instruction, operand);
  const int columns = mma::ColumnsOf(instruction, operand);
  const auto elements = static_cast<size_t>(rows * columns * instruction.products());
  for (int lane = 0; lane < instruction.lanes(); ++lane) {
    for (int i = 0; i < mma::ElementsPerLane(instruction, operand); ++i) {
      const Position at = mma::PositionOf(instruction, operand, lane, i);
      if (at.row < 0 || at.row >= rows || at.column < 0 || at.column >= columns) return false;
      if (at.product < 0 || at.product >= instruction.products()) return false;
      ++count[static_cast<size_t>((at.product * rows + at.row) * columns + at.column)];
    }
  }
  for (size_t i = 0; i < elements; ++i) {
    if (count[i] != mma::CopiesOf(instruction, operand)) return false;
  }
  return true;
}

constexpr bool CoversExactly(std::string_view name) {
  const Instruction& instruction = *mma::FindInstruction(name);
  return CoversExactly(instruction, Operand::kA) && CoversExactly(instruction, Operand::kC) &&
         CoversExactly(instruction, Operand::kD) &&
         (instruction.is_warpgroup() || CoversExactly(instruction, Operand::kB));
}

// The compiler checks one of each family, so that a mistake does not build.
static_assert(CoversExactly("mma.m16n8k16.f32.f16.f16.f32"));
static_assert(CoversExactly("mma.m8n8k4.col.row.f32.f16.f16.f32"));
static_assert(CoversExactly("mma.m16n8k16.f64"));
static_assert(CoversExactly("mma.sp.m16n8k64.s32.s8.s8.s32"));
static_assert(CoversExactly("wmma.m8n32k16.row.col.f32.f16.f16.f32"));
static_assert(CoversExactly("wgmma.m64n8k16.f16.f16.f16"));
static_assert(CoversExactly("wgmma.sp.m64n8k64.f32.e4m3.e4m3"));

TEST(Fragment, HoldsEveryElement) {
  for (const Instruction& instruction : kInstructions) {
    for (const Operand operand : kOperands) {
      if (!HasFragment(instruction, operand)) continue;
      EXPECT_TRUE(CoversExactly(instruction, operand)) << Describe(instruction, operand, -1, -1);
    }
  }
}

TEST(Fragment, FillsWholeRegisters) {
  for (const Instruction& instruction : kInstructions) {
    for (const Operand operand : kOperands) {
      const int bits =
          mma::ElementsPerLane(instruction, operand) * mma::ContainerBits(instruction, operand);
      EXPECT_EQ(mma::WordsPerLane(instruction, operand) * 32, bits)
          << Describe(instruction, operand, -1, -1);
      EXPECT_EQ(bits > 0, HasFragment(instruction, operand))
          << Describe(instruction, operand, -1, -1);
    }
  }
}

// Checks that PositionOf equals `want(lane, i)` for every element.
template <typename Want>
void ExpectPositions(const Instruction& instruction, Operand operand, const Want& want) {
  for (int lane = 0; lane < instruction.lanes(); ++lane) {
    for (int i = 0; i < mma::ElementsPerLane(instruction, operand); ++i) {
      const Position got = mma::PositionOf(instruction, operand, lane, i);
      const Position expected = want(lane, i);
      ASSERT_EQ(got, expected) << Describe(instruction, operand, lane, i);
    }
  }
}

void ExpectRule(const Instruction& instruction, Operand operand, PtxRule rule) {
  ExpectPositions(instruction, operand, [&](int lane, int i) { return rule(PtxLane(lane), i); });
}

TEST(Fragment, OfMmaIsThatOfItsChapter) {
  std::set<std::string_view> sections;
  for (const Instruction& instruction : kInstructions) {
    if (instruction.family != mma::Family::kMma || instruction.products() == 4) continue;
    const PtxChapter* chapter = FindPtxChapter(instruction);
    ASSERT_NE(chapter, nullptr) << mma::NameOf(instruction).view();
    sections.insert(chapter->section);
    ExpectRule(instruction, Operand::kA, chapter->a);
    ExpectRule(instruction, Operand::kB, chapter->b);
    ExpectRule(instruction, Operand::kC, chapter->c);
    ExpectRule(instruction, Operand::kD, chapter->c);
  }
  EXPECT_EQ(sections.size(), 17u);  // Every chapter has an instruction.
}

TEST(Fragment, OfM8n8k4F16IsThatOfItsChapter) {
  int instructions = 0;
  for (const Instruction& instruction : kInstructions) {
    if (instruction.products() != 4) continue;
    ++instructions;
    for (const Operand operand : kOperands) {
      ExpectPositions(instruction, operand,
                      [&](int lane, int i) { return PtxM8n8k4F16(instruction, operand, lane, i); });
    }
  }
  EXPECT_EQ(instructions, 12);
}

// Checks that the group of each kept element covers columns among those that the manual names.
void ExpectSparsePlaces(const Instruction& instruction, PtxSparseRule rule) {
  const int group = mma::GroupSize(mma::SparsityOf(instruction));
  const int kept = group / 2;
  for (int lane = 0; lane < 32; ++lane) {
    PtxSparsePlace last = {};
    int last_column = -1;
    for (int i = 0; i < mma::ElementsPerLane(instruction, Operand::kA); ++i) {
      const Position got = mma::PositionOf(instruction, Operand::kA, lane, i);
      const PtxSparsePlace want = rule(PtxLane(lane), i);
      const int first = got.column / kept * group;
      ASSERT_EQ(got.row, want.row) << Describe(instruction, Operand::kA, lane, i);
      ASSERT_GE(first, want.first_column) << Describe(instruction, Operand::kA, lane, i);
      ASSERT_LE(first + group - 1, want.last_column) << Describe(instruction, Operand::kA, lane, i);
      // Elements of the same columns of a row are in ascending order.
      const bool continues =
          last_column >= 0 && last.row == want.row && last.first_column == want.first_column;
      if (continues) {
        ASSERT_EQ(got.column, last_column + 1) << Describe(instruction, Operand::kA, lane, i);
      }
      last = want;
      last_column = got.column;
    }
  }
}

TEST(Fragment, OfSparseMmaIsThatOfItsChapter) {
  std::set<std::string_view> sections;
  for (const Instruction& instruction : kInstructions) {
    if (instruction.family != mma::Family::kMmaSparse) continue;
    const PtxSparseChapter* chapter = FindPtxSparseChapter(instruction);
    ASSERT_NE(chapter, nullptr) << mma::NameOf(instruction).view();
    sections.insert(chapter->section);
    ExpectSparsePlaces(instruction, chapter->a);
    ExpectRule(instruction, Operand::kB, chapter->b);
    ExpectRule(instruction, Operand::kC, chapter->c);
    ExpectRule(instruction, Operand::kD, chapter->c);
  }
  EXPECT_EQ(sections.size(), 8u);
}

TEST(Fragment, OfWarpgroupsIsThatOfTheFigures) {
  for (const Instruction& instruction : kInstructions) {
    if (!instruction.is_warpgroup()) continue;
    ExpectPositions(instruction, Operand::kA,
                    [&](int lane, int i) { return PtxWarpgroupA(instruction, lane, i); });
    for (const Operand operand : {Operand::kC, Operand::kD}) {
      ExpectPositions(instruction, operand, [&](int lane, int i) {
        return PtxWarpgroupD(instruction, operand, lane, i);
      });
    }
  }
}

}  // namespace
}  // namespace gemmd
