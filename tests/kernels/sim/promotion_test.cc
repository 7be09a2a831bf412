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
                               const FamilyCase& product, int promotion_k,
                               const std::byte* a_factors = nullptr,
                               const std::byte* b_factors = nullptr) {
  const Problem& problem = product.problem;
  std::vector<uint32_t> d(static_cast<size_t>(problem.m * problem.n), 0xdeadbeef);
  sim::Multiply(path,
                {.instruction = instruction,
                 .chip = chip,
                 .problem = problem,
                 .a = product.a.data(),
                 .b = product.b.data(),
                 .a_factors = a_factors,
                 .b_factors = b_factors,
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

// Factors of blocks, as their definition says (block_scale.h): those of an element's block, for
// blocks of any lines and of whole promotions.
class ScaledPromotions {
 public:
  ScaledPromotions(FamilyCase& product, RandomSource& random) : problem_(product.problem) {
    a_ = Draw(problem_.m, random, problem_.a_blocks);
    b_ = Draw(problem_.n, random, problem_.b_blocks);
    const int64_t which = random.Between(0, 4);
    problem_.a_scale = which == 0 ? ScaleKind::kNone : ScaleKind::kBlocks;
    problem_.b_scale = which == 1 ? ScaleKind::kNone : ScaleKind::kBlocks;
  }

  const std::byte* a() const { return a_.data(); }
  const std::byte* b() const { return b_.data(); }

  // The factor of an element of D for the sum over the elements of k from `k` on.
  float At(int64_t row, int64_t column, int64_t k) const {
    return Factor(problem_.a_scale, problem_.a_blocks, a_, row, k) *
           Factor(problem_.b_scale, problem_.b_blocks, b_, column, k);
  }

 private:
  std::vector<std::byte> Draw(int64_t extent, RandomSource& random, BlockScale& blocks) const {
    blocks.type = static_cast<FactorType>(random.Between(0, 2));
    blocks.lines = random.Between(0, 2) == 0 ? extent + 1 : random.Between(1, 5);
    blocks.depth = kPromotionK * random.Between(1, 3);
    const int64_t bytes = FactorBytes("x", blocks, extent, problem_.k, 1).value();
    std::vector<std::byte> factors(static_cast<size_t>(bytes));
    for (size_t i = 0; i < factors.size(); i += static_cast<size_t>(BytesOf(blocks.type))) {
      const auto value = static_cast<float>(random.AnyMagnitude(-4, 4));
      if (blocks.type == FactorType::kF32) {
        std::memcpy(&factors[i], &value, sizeof(value));
      } else {
        factors[i] = static_cast<std::byte>(random.Bits());  // Sometimes NaN.
      }
    }
    return factors;
  }

  float Factor(ScaleKind kind, const BlockScale& blocks, const std::vector<std::byte>& factors,
               int64_t line, int64_t k) const {
    if (kind != ScaleKind::kBlocks) return 1;
    const int64_t along = (problem_.k + blocks.depth - 1) / blocks.depth;
    const auto at = static_cast<size_t>(line / blocks.lines * along + k / blocks.depth);
    if (blocks.type == FactorType::kF32) {
      float value = 0;
      std::memcpy(&value, &factors[at * sizeof(value)], sizeof(value));
      return value;
    }
    const auto code = std::to_integer<uint8_t>(factors[at]);
    if (blocks.type == FactorType::kUe4m3) {
      return static_cast<float>(Decode(ElementType::kE4m3, code & 0x7fU));
    }
    return code == 0xff ? std::nanf("") : std::ldexp(1.0F, code - 127);
  }

  Problem& problem_;
  std::vector<std::byte> a_;
  std::vector<std::byte> b_;
};

TEST_P(PromotionTest, MultipliesSumsByFactorsOfBlocks) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  int products = 0;
  for (const Instruction& instruction : mma::kInstructions) {
    if (!ScalesPromotedSums(instruction, kPromotionK) ||
        (instruction.n != 8 && instruction.n != 24))
      continue;
    SCOPED_TRACE(std::string(mma::NameOf(instruction).view()));
    for (const int64_t k : {int64_t{8}, int64_t{128}, int64_t{136}, 8 * random.Between(33, 100)}) {
      FamilyCase product = MakeCase(instruction, GetParam(), random.Between(1, 20),
                                    random.Between(1, 20), k, random);
      const auto n = static_cast<size_t>(product.problem.n);
      std::vector<uint32_t> want(static_cast<size_t>(product.problem.m) * n, 0);
      const FamilyCase unscaled = product;
      const ScaledPromotions factors(product, random);
      for (int64_t first = 0; first < k; first += kPromotionK) {
        const FamilyCase part = PartOf(unscaled, first, std::min(k, first + kPromotionK));
        const std::vector<uint32_t> sums =
            Multiply(sim::Path::kScalar, instruction, Chip::kSm90, part, 0);
        for (size_t i = 0; i < want.size(); ++i) {
          const float factor =
              factors.At(static_cast<int64_t>(i / n), static_cast<int64_t>(i % n), first);
          const float total =
              std::fma(std::bit_cast<float>(sums[i]), factor, std::bit_cast<float>(want[i]));
          want[i] = std::isnan(total) ? 0x7fffffff : std::bit_cast<uint32_t>(total);
        }
      }
      for (const sim::Path path : {sim::Path::kScalar, sim::Path::kAvx2, sim::Path::kAvx512}) {
        if (!sim::CanRun(path, instruction, Chip::kSm90)) continue;
        ++products;
        EXPECT_EQ(Multiply(path, instruction, Chip::kSm90, product, kPromotionK, factors.a(),
                           factors.b()),
                  want)
            << "k " << k << ", path " << static_cast<int>(path);
      }
    }
  }
  EXPECT_GE(products, 32);
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
