// SPDX-License-Identifier: Apache-2.0
//
// The vector code compared with the plain one, bit for bit: every kind of arithmetic, every family
// of operands.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"
#include "kernels/sim/product.h"
#include "kernels/sim/vector/runs.h"
#include "tests/kernels/sim/operand_families.h"
#include "tests/kernels/sim/watched_code.h"
#include "tests/testing/random_source.h"
#include "tests/testing/sanitized.h"

namespace gemmd {
namespace {

using mma::Chip;
using mma::Instruction;

std::vector<Chip> Chips() {
  if (kIsSanitized) return {Chip::kSm70, Chip::kSm90};
  return {mma::kAllChips.begin(), mma::kAllChips.end()};
}

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

// The parameters of a case.
struct Subject {
  const Instruction* instruction;
  Chip chip;
};

// Every instruction of every chip that has vector code, and three of the widths of a warpgroup.
std::vector<Subject> AllSubjects() {
  std::vector<Subject> all;
  for (const Chip chip : Chips()) {
    for (const Instruction& instruction : mma::kInstructions) {
      if (mma::SupportOn(instruction, chip) == mma::Support::kUnavailable) continue;
      if (!sim::CanRun(sim::Path::kAvx2, instruction, chip)) continue;
      const bool is_width_left_out = instruction.is_warpgroup() && instruction.n != 8 &&
                                     instruction.n != 24 && instruction.n != 256;
      // The portable form of fp4 keeps pairs.
      const bool has_no_portable_form = instruction.is_sparse() &&
                                        instruction.a == ElementType::kE2m1 &&
                                        SparsityOf(instruction) != mma::Sparsity::kFourOfEight;
      if (!is_width_left_out && !has_no_portable_form) all.push_back({&instruction, chip});
    }
  }
  return all;
}

class PathsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (sim::Avx2Code() == nullptr) GTEST_SKIP() << "this processor has no AVX2";
  }

  void Compare(const Subject& subject, Family family, int64_t m, int64_t n, int64_t k) {
    const Instruction& instruction = *subject.instruction;
    const FamilyCase product = MakeCase(instruction, family, m, n, k, random_);
    const std::vector<uint32_t> want =
        Multiply(sim::Path::kScalar, instruction, subject.chip, product);
    for (const sim::Path path : {sim::Path::kAvx2, sim::Path::kAvx512}) {
      if (!sim::CanRun(path, instruction, subject.chip)) continue;
      TakeWatchedCode();
      const std::vector<uint32_t> got = Multiply(path, instruction, subject.chip, product);
      ASSERT_EQ(TakeWatchedCode(), path == sim::Path::kAvx2 ? sim::Avx2Code() : sim::Avx512Code());
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i], want[i])
            << std::string(mma::NameOf(instruction).view()) << " on "
            << std::string(mma::NameOf(subject.chip)) << ", " << std::string(NameOf(family)) << ", "
            << m << "x" << n << "x" << k << ", path " << static_cast<int>(path) << ", word " << i
            << ", " << random_.trace();
      }
    }
    elements_ += m * n;
  }

  RandomSource random_;
  int64_t elements_ = 0;
};

// Linux reports the processor's features, independently of the simulator.
TEST(VectorCodeTest, IsThereWhereTheProcessorHasIt) {
  const bool has_avx2 = ProcessorHas("avx2") && ProcessorHas("fma") && ProcessorHas("popcnt");
  EXPECT_EQ(sim::Avx2Code() != nullptr, has_avx2);
  const bool has_avx512 =
      ProcessorHas("avx512f") && ProcessorHas("avx512bw") && ProcessorHas("avx512dq");
  EXPECT_EQ(sim::Avx512Code() != nullptr, has_avx2 && has_avx512);
}

TEST(VectorCodeTest, OfTwoKindsIsNotTheSame) {
  if (sim::Avx512Code() == nullptr) GTEST_SKIP() << "this processor has no AVX-512";
  EXPECT_NE(sim::Avx512Code()->fused, sim::Avx2Code()->fused);
  EXPECT_NE(sim::Avx512Code()->integers, sim::Avx2Code()->integers);
  EXPECT_NE(sim::Avx512Code()->bits, sim::Avx2Code()->bits);
  EXPECT_NE(sim::Avx512Code()->f64, sim::Avx2Code()->f64);
  EXPECT_NE(sim::Avx512Code()->multiply_adds, sim::Avx2Code()->multiply_adds);
}

class FamiliesTest : public PathsTest, public testing::WithParamInterface<Family> {
 protected:
  // Compares one subject in `step`, starting with a different family each time.
  void CompareSubjects(size_t step, int64_t m, int64_t n) {
    const std::vector<Subject> subjects = AllSubjects();
    const int64_t instructions = GetParam() == Family::kLongChain ? 9 : 2;
    for (size_t i = static_cast<size_t>(GetParam()) % step; i < subjects.size(); i += step) {
      Compare(subjects[i], GetParam(), m, n, instructions * subjects[i].instruction->k);
      if (HasFatalFailure()) return;
    }
  }
};

std::string NameOfFamily(const testing::TestParamInfo<Family>& test) {
  std::string name(NameOf(test.param));
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

TEST_P(FamiliesTest, GiveTheSameBits) { CompareSubjects(4, 17, 19); }
INSTANTIATE_TEST_SUITE_P(All, FamiliesTest, testing::ValuesIn(kAllFamilies), NameOfFamily);

class FamiliesExhaustive : public FamiliesTest {};
// A million elements of the result.
TEST_P(FamiliesExhaustive, GiveTheSameBits) {
  while (elements_ < 1'000'000) {
    CompareSubjects(1, 33, 35);
    if (HasFatalFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(All, FamiliesExhaustive, testing::ValuesIn(kAllFamilies), NameOfFamily);

// Incomplete chunks, panels, tasks and blocks of the result; and more instructions than a chunk
// takes. Leaves out shapes in which several extents are the largest.
class OddShapesTest : public PathsTest {
 protected:
  void CompareOddShapes(int max_largest) {
    for (const std::string_view name :
         {"wmma.m16n16k16.row.col.f32.f16.f16.f32", "wgmma.m64n40k16.f32.f16.f16",
          "mma.m16n8k32.s32.s8.s8.s32", "mma.m8n8k128.s32.b1.b1.s32.xor.popc", "mma.m16n8k4.rp.f64",
          "mma.m8n8k4.row.row.f32.f16.f16.f16", "mma.sp.m16n8k16.f32.f16.f16.f32",
          "mma.m16n8k32.f16.e4m3.e5m2.f16"}) {
      for (const int64_t m : {1, 5, 65, 130}) {
        for (const int64_t n : {1, 17, 81}) {
          for (const int64_t k : {1, 15, 257, 530}) {
            const int largest = (m == 130 ? 1 : 0) + (n == 81 ? 1 : 0) + (k == 530 ? 1 : 0);
            if (largest > max_largest) continue;
            Compare({mma::FindInstruction(name), Chip::kSm90}, Family::kNormal, m, n, k);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
};

TEST_F(OddShapesTest, GiveTheSameBits) { CompareOddShapes(1); }
class OddShapesExhaustive : public OddShapesTest {};
TEST_F(OddShapesExhaustive, GiveTheSameBits) { CompareOddShapes(3); }

// Larger than the blocks of the result that are computed at once.
TEST_F(PathsTest, GiveTheSameBitsBeyondABlock) {
  const Subject subject = {mma::FindInstruction("mma.m16n8k16.f32.bf16.bf16.f32"), Chip::kSm90};
  Compare(subject, Family::kNormal, 2100, 3, 17);
  Compare(subject, Family::kNormal, 3, 2100, 17);
}

}  // namespace
}  // namespace gemmd
