// SPDX-License-Identifier: Apache-2.0
//
// Every pair of operands of the types of at most 8 bits, as the only product of an instruction,
// compared with the product of their values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/matrix/element.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"
#include "kernels/sim/product.h"

namespace gemmd {
namespace {

using mma::Chip;
using mma::Instruction;

// The expected accumulator as a 32-bit word: an f16 one as f32.
uint32_t ExpectedWord(const Instruction& instruction, uint32_t a, uint32_t b) {
  if (instruction.bit_count == mma::BitCount::kAnd) return a & b;
  if (instruction.bit_count == mma::BitCount::kXor) return a ^ b;
  const double value = Decode(instruction.a, a) * Decode(instruction.b, b);
  if (instruction.d == ElementType::kS32) {
    return static_cast<uint32_t>(static_cast<int64_t>(value));
  }
  if (std::isnan(value)) return 0x7fffffff;
  if (value == 0) return 0;  // Sums are never -0 ...
  double rounded = value;    // At most 8 significant bits: exact in f32, and in f16 while normal.
  if (instruction.d == ElementType::kF16) {
    rounded = Decode(ElementType::kF16, Encode(ElementType::kF16, value));
  }
  if (rounded == 0) return 0;  // ... nor where f16 underflows.
  const auto word = static_cast<float>(rounded);
  uint32_t bits;
  std::memcpy(&bits, &word, sizeof(bits));
  return bits;
}

// A: row i holds i at this depth; B: column j holds j; everything else is zero.
struct AllPairs {
  AllPairs(const Instruction& instruction, int64_t depth) {
    problem.m = int64_t{1} << BitsOf(instruction.a);
    problem.n = int64_t{1} << BitsOf(instruction.b);
    problem.k = instruction.k;
    problem.accumulation = instruction.d;
    problem.a = TightLayout("a", instruction.a, Order::kRowMajor, problem.m, problem.k).value();
    problem.b = TightLayout("b", instruction.b, Order::kColumnMajor, problem.k, problem.n).value();
    problem.d = TightLayout("d", instruction.d, Order::kRowMajor, problem.m, problem.n).value();
    a.resize(static_cast<size_t>(problem.a.batch_stride_bytes));
    b.resize(static_cast<size_t>(problem.b.batch_stride_bytes));
    for (int64_t i = 0; i < problem.m; ++i) {
      StoreBits(instruction.a, a.data() + i * problem.a.line_stride_bytes(), depth,
                static_cast<uint64_t>(i));
    }
    for (int64_t j = 0; j < problem.n; ++j) {
      StoreBits(instruction.b, b.data() + j * problem.b.line_stride_bytes(), depth,
                static_cast<uint64_t>(j));
    }
  }

  Problem problem;
  std::vector<std::byte> a;
  std::vector<std::byte> b;
};

void Check(const Instruction& instruction, Chip chip, sim::Path path, int64_t depth) {
  const AllPairs pairs(instruction, depth);
  const Problem& problem = pairs.problem;
  std::vector<uint32_t> d(static_cast<size_t>(problem.m * problem.n), 0xdeadbeef);
  sim::Multiply(path,
                {.instruction = instruction,
                 .chip = chip,
                 .problem = problem,
                 .a = pairs.a.data(),
                 .b = pairs.b.data()},
                {.data = reinterpret_cast<std::byte*>(d.data()),
                 .type = instruction.d == ElementType::kF16 ? ElementType::kF32 : instruction.d,
                 .order = Order::kRowMajor,
                 .leading_dimension = problem.n});
  for (uint32_t i = 0; i < problem.m; ++i) {
    for (uint32_t j = 0; j < problem.n; ++j) {
      ASSERT_EQ(d[i * static_cast<size_t>(problem.n) + j], ExpectedWord(instruction, i, j))
          << std::string(mma::NameOf(instruction).view()) << " on "
          << std::string(mma::NameOf(chip)) << ", path " << static_cast<int>(path) << ", a " << i
          << ", b " << j;
    }
  }
}

class PairsTest : public testing::TestWithParam<Chip> {
 protected:
  // Every instruction, or one in `step`.
  void CheckInstructions(int step) {
    int64_t depth = 0;
    int seen = 0;
    for (const Instruction& instruction : mma::kInstructions) {
      const bool is_narrow = BitsOf(instruction.a) <= 8 && BitsOf(instruction.b) <= 8;
      // Widths of a warpgroup are alike; a sparse A is like the dense one of its kept elements.
      const bool is_repeated =
          instruction.is_sparse() || (instruction.is_warpgroup() && instruction.n != 64);
      if (!is_narrow || is_repeated ||
          mma::SupportOn(instruction, GetParam()) == mma::Support::kUnavailable ||
          seen++ % step != 0) {
        continue;
      }
      for (const sim::Path path : {sim::Path::kScalar, sim::Path::kAvx2, sim::Path::kAvx512}) {
        if (!sim::CanRun(path, instruction, GetParam())) continue;
        Check(instruction, GetParam(), path, depth++ % instruction.k);
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_TRUE(depth > 0 || GetParam() == Chip::kSm70);  // Volta has f16 alone.
  }
};

std::string NameOfChip(const testing::TestParamInfo<Chip>& test) {
  return std::string(mma::NameOf(test.param));
}

// The other chips share the code of two chips.
TEST_P(PairsTest, AreTheProductsOfTheirValues) {
  const bool is_sampled = GetParam() == Chip::kSm90 || GetParam() == Chip::kSm120;
  CheckInstructions(is_sampled ? 1 : 10);
}
INSTANTIATE_TEST_SUITE_P(Chips, PairsTest, testing::ValuesIn(mma::kAllChips), NameOfChip);

class PairsExhaustive : public PairsTest {};
TEST_P(PairsExhaustive, AreTheProductsOfTheirValues) { CheckInstructions(1); }
INSTANTIATE_TEST_SUITE_P(Chips, PairsExhaustive, testing::ValuesIn(mma::kAllChips), NameOfChip);

}  // namespace
}  // namespace gemmd
