// SPDX-License-Identifier: Apache-2.0
//
// Promoted sums are the instruction's own sums over every 128 elements of k, added in f32: compared
// with products of those parts of k, in every code path.
#include "kernels/promotion.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/matrix/element.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"
#include "kernels/sim/product.h"
#include "tests/kernels/sim/operand_families.h"
#include "tests/kernels/sim/watched_code.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

using mma::Chip;
using mma::Instruction;

std::vector<uint32_t> Multiply(sim::Path path, const Instruction& instruction, Chip chip,
                               const FamilyCase& product, int promotion_k) {
  const Problem& problem = product.problem;
  std::vector<uint32_t> d(static_cast<size_t>(problem.m * problem.n), 0xdeadbeef);
  sim::Multiply(path,
                {.instruction = instruction,
                 .chip = chip,
                 .problem = problem,
                 .a = product.a.data(),
                 .b = product.b.data(),
                 .promotion_k = promotion_k},
                {.data = reinterpret_cast<std::byte*>(d.data()),
                 .type = ElementType::kF32,
                 .order = Order::kRowMajor,
                 .leading_dimension = problem.n});
  return d;
}

// Elements `first` to `last` along k of a product of bytes.
FamilyCase PartOf(const FamilyCase& whole, int64_t first, int64_t last) {
  FamilyCase part = whole;
  Problem& problem = part.problem;
  const int64_t k = problem.k;
  problem.k = last - first;
  problem.b = TightLayout("b", problem.b.type, Order::kColumnMajor, problem.k, problem.n).value();
  part.b.clear();
  for (int64_t column = 0; column < problem.n; ++column) {
    const auto line = whole.b.begin() + column * k;
    part.b.insert(part.b.end(), line + first, line + last);
  }
  if (!problem.a.is_sparse()) {
    problem.a = TightLayout("a", problem.a.type, Order::kRowMajor, problem.m, problem.k).value();
    part.a.clear();
    for (int64_t row = 0; row < problem.m; ++row) {
      const auto line = whole.a.begin() + row * k;
      part.a.insert(part.a.end(), line + first, line + last);
    }
    return part;
  }
  const SparseLayout from = SparseLayoutOf("a", problem.a.type, problem.m, k).value();
  const SparseLayout to = SparseLayoutOf("a", problem.a.type, problem.m, problem.k).value();
  problem.a = TightSparseLayout("a", problem.a.type, problem.m, problem.k).value();
  part.a.assign(static_cast<size_t>(to.bytes), std::byte{0});
  for (int64_t row = 0; row < problem.m; ++row) {
    // Two of four bytes are kept, and their indices take half a byte.
    std::memcpy(part.a.data() + to.values_offset(row),
                whole.a.data() + from.values_offset(row) + first / 2,
                static_cast<size_t>(to.value_line_bytes));
    std::memcpy(part.a.data() + to.indices_offset(row),
                whole.a.data() + from.indices_offset(row) + first / 8,
                static_cast<size_t>(to.index_line_bytes));
  }
  return part;
}

uint32_t Added(uint32_t total, uint32_t sum) {
  const float result = std::bit_cast<float>(total) + std::bit_cast<float>(sum);
  return std::isnan(result) ? 0x7fffffff : std::bit_cast<uint32_t>(result);
}

class PromotionTest : public testing::TestWithParam<Family> {
 protected:
  void TearDown() override { TakeWatchedCode(); }
};

TEST_P(PromotionTest, AddsSumsOfPartsOfKInF32) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  int instructions = 0;
  for (const Instruction& instruction : mma::kInstructions) {
    if (!HasPromotedRows(instruction)) continue;
    if (instruction.is_warpgroup() && instruction.n != 8 && instruction.n != 24) continue;
    const Chip chip = instruction.is_warpgroup() ? Chip::kSm90 : Chip::kSm89;
    if (mma::SupportOn(instruction, chip) == mma::Support::kUnavailable) continue;
    ++instructions;
    SCOPED_TRACE(std::string(mma::NameOf(instruction).view()));
    for (const int64_t k : {int64_t{8}, int64_t{128}, int64_t{136}, 8 * random.Between(33, 100)}) {
      const FamilyCase product = MakeCase(instruction, GetParam(), random.Between(1, 20),
                                          random.Between(1, 20), k, random);
      std::vector<uint32_t> want(static_cast<size_t>(product.problem.m * product.problem.n), 0);
      for (int64_t first = 0; first < k; first += kPromotionK) {
        const FamilyCase part = PartOf(product, first, std::min(k, first + kPromotionK));
        const std::vector<uint32_t> sums = Multiply(sim::Path::kScalar, instruction, chip, part, 0);
        for (size_t i = 0; i < want.size(); ++i) want[i] = Added(want[i], sums[i]);
      }
      for (const sim::Path path : {sim::Path::kScalar, sim::Path::kAvx2, sim::Path::kAvx512}) {
        if (!sim::CanRun(path, instruction, chip)) continue;
        EXPECT_EQ(Multiply(path, instruction, chip, product, kPromotionK), want)
            << "k " << k << ", path " << static_cast<int>(path);
      }
    }
  }
  EXPECT_GE(instructions, 16);
}
INSTANTIATE_TEST_SUITE_P(Families, PromotionTest, testing::ValuesIn(kAllFamilies),
                         [](const testing::TestParamInfo<Family>& param) {
                           return "Family" + std::to_string(static_cast<int>(param.param));
                         });

class PromotionErrorTest : public testing::Test {
 protected:
  void TearDown() override { TakeWatchedCode(); }
};

// The reason for promotion: sums of 8192 numbers from 0 to 1.
TEST_F(PromotionErrorTest, StaysThatOfOneSum) {
  constexpr int64_t kDepth = 8192;
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const auto* const instruction = &*std::find_if(
      mma::kInstructions.begin(), mma::kInstructions.end(), [](const Instruction& candidate) {
        return candidate.is_warpgroup() && HasPromotedRows(candidate) && candidate.n == 8 &&
               !candidate.is_sparse() && candidate.a == ElementType::kE4m3 &&
               candidate.b == ElementType::kE4m3;
      });
  FamilyCase product = MakeCase(*instruction, Family::kNormal, 8, 8, kDepth, random);
  for (std::vector<std::byte>* const matrix : {&product.a, &product.b}) {
    for (std::byte& element : *matrix) {
      const double value = static_cast<double>(random.Bits() % 1024) / 1024;
      element = static_cast<std::byte>(Encode(ElementType::kE4m3, value));
    }
  }
  const auto error_of = [&](int promotion_k) {
    const std::vector<uint32_t> d = Multiply(sim::BestPath(*instruction, Chip::kSm90), *instruction,
                                             Chip::kSm90, product, promotion_k);
    double largest = 0;
    double error = 0;
    for (int64_t i = 0; i < 8; ++i) {
      for (int64_t j = 0; j < 8; ++j) {
        double exact = 0;
        for (int64_t p = 0; p < kDepth; ++p) {
          const auto at = [&](const std::vector<std::byte>& bytes, int64_t line) {
            return Decode(ElementType::kE4m3,
                          static_cast<uint64_t>(bytes[static_cast<size_t>(line * kDepth + p)]));
          };
          exact += at(product.a, i) * at(product.b, j);
        }
        const auto got = std::bit_cast<float>(d[static_cast<size_t>(i * 8 + j)]);
        largest = std::max(largest, exact);
        error = std::max(error, std::fabs(static_cast<double>(got) - exact));
      }
    }
    return error / largest;
  };
  EXPECT_GT(error_of(0), 0.02);
  EXPECT_LE(error_of(kPromotionK), 1e-3);
  // kernels/README.md explains why it is neither done half nor twice as often.
  EXPECT_LE(error_of(kPromotionK / 2), error_of(kPromotionK) / 2);
  EXPECT_GE(error_of(kPromotionK * 2), error_of(kPromotionK) * 2);
}

}  // namespace
}  // namespace gemmd
