// SPDX-License-Identifier: Apache-2.0
//
// The vector code against the plain one, bit for bit: every kind of arithmetic, every family of
// operands, a million elements of the result for each family.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/mma/find.h"
#include "kernels/mma/instructions.h"
#include "kernels/sim/product.h"
#include "tests/kernels/sim/operand_families.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

using mma::Chip;
using mma::Instruction;

std::vector<uint32_t> Multiply(sim::Path path, const Instruction& instruction, Chip chip,
                               const FamilyCase& product) {
  const Problem& problem = product.problem;
  const ElementType type = instruction.d == ElementType::kF16 ? ElementType::kF32 : instruction.d;
  std::vector<uint32_t> d(static_cast<size_t>(problem.m * problem.n * BitsOf(type) / 32),
                          0xdeadbeef);
  sim::Multiply(path,
                {.instruction = instruction,
                 .chip = chip,
                 .problem = problem,
                 .a = product.a.data(),
                 .b = product.b.data()},
                {.data = reinterpret_cast<std::byte*>(d.data()),
                 .type = type,
                 .order = Order::kRowMajor,
                 .leading_dimension = problem.n});
  return d;
}

// Instructions that differ in arithmetic, type or shape; of the widths of a warpgroup three.
std::vector<const Instruction*> SampledInstructions(Chip chip) {
  std::vector<const Instruction*> all;
  for (const Instruction& instruction : mma::kInstructions) {
    if (mma::SupportOn(instruction, chip) == mma::Support::kUnavailable) continue;
    if (instruction.is_warpgroup() && instruction.n != 8 && instruction.n != 24 &&
        instruction.n != 256) {
      continue;
    }
    if (sim::CanRun(sim::Path::kAvx2, instruction, chip)) all.push_back(&instruction);
  }
  return all;
}

class PathsTest : public testing::TestWithParam<Chip> {
 protected:
  void Compare(const Instruction& instruction, Family family, int64_t m, int64_t n, int64_t k) {
    if (instruction.is_sparse() && SparsityOf(instruction) == mma::Sparsity::kTwoOfFour &&
        instruction.a == ElementType::kE2m1) {
      return;  // Its portable form is another one.
    }
    const FamilyCase product = MakeCase(instruction, family, m, n, k, random_);
    const std::vector<uint32_t> want =
        Multiply(sim::Path::kScalar, instruction, GetParam(), product);
    for (const sim::Path path : {sim::Path::kAvx2, sim::Path::kAvx512}) {
      if (!sim::CanRun(path, instruction, GetParam())) continue;
      const std::vector<uint32_t> got = Multiply(path, instruction, GetParam(), product);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i], want[i])
            << std::string(mma::NameOf(instruction).view()) << ", " << std::string(NameOf(family))
            << ", " << m << "x" << n << "x" << k << ", path " << static_cast<int>(path) << ", word "
            << i << ", " << random_.trace();
      }
    }
    elements_ += m * n;
  }

  RandomSource random_;
  int64_t elements_ = 0;
};

TEST_P(PathsTest, GiveTheSameBitsForEveryFamily) {
  if (!sim::CanRun(sim::Path::kAvx2,
                   *mma::FindInstruction("wmma.m16n16k16.row.col.f32.f16.f16.f32"), GetParam())) {
    GTEST_SKIP() << "this processor has no AVX2";
  }
  for (const Instruction* instruction : SampledInstructions(GetParam())) {
    for (const Family family : kAllFamilies) {
      const int64_t depth = instruction->k;
      Compare(*instruction, family, 33, 35, family == Family::kLongChain ? 9 * depth : 2 * depth);
      if (HasFatalFailure()) return;
    }
  }
}

// Parts of chunks, panels, tasks and blocks of the result; and more instructions than a chunk
// takes.
TEST_P(PathsTest, GiveTheSameBitsForOddShapes) {
  const Instruction& instruction = *mma::FindInstruction("wmma.m16n16k16.row.col.f32.f16.f16.f32");
  for (const int64_t m : {1, 5, 65, 130}) {
    for (const int64_t n : {1, 17, 81}) {
      for (const int64_t k : {1, 15, 257, 530}) {
        Compare(instruction, Family::kNormal, m, n, k);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, PathsTest, testing::ValuesIn(mma::kAllChips),
                         [](const auto& test) { return std::string(mma::NameOf(test.param)); });

}  // namespace
}  // namespace gemmd
