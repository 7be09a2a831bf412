// SPDX-License-Identifier: Apache-2.0
//
// Block factors of products with block-scaled instructions: each element of A and B is multiplied
// by the factor of its block, wherever instructions begin and end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/mma/chip.h"
#include "kernels/sim/unit.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_source.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

constexpr mma::Chip kChip = mma::Chip::kSm120;
constexpr Target kTarget = {.kind = DeviceKind::kSim, .chip = kChip};

// Every block-scaled instruction whose A has a portable form.
std::vector<const Kernel*> BlockScaledKernels() {
  std::vector<const Kernel*> kernels;
  for (const Kernel& kernel : Catalog(DeviceKind::kSim)) {
    const mma::Instruction& instruction = *kernel.instruction;
    const bool has_no_portable_form = instruction.is_sparse() &&
                                      instruction.a == ElementType::kE2m1 &&
                                      SparsityOf(instruction) != mma::Sparsity::kFourOfEight;
    if (instruction.scales > 0 && !has_no_portable_form) kernels.push_back(&kernel);
  }
  return kernels;
}

FactorType FactorTypeOf(const mma::Instruction& instruction) {
  return instruction.scale == mma::ScaleType::kUe8m0 ? FactorType::kUe8m0 : FactorType::kUe4m3;
}

Problem ScaledProblem(const Kernel& kernel, int64_t m, int64_t n, int64_t k,
                      const Layouts& layouts) {
  const mma::Instruction& instruction = *kernel.instruction;
  Problem problem = MakeProblem(kernel, m, n, k, layouts);
  problem.a_scale = problem.b_scale = ScaleKind::kBlocks;
  problem.a_blocks = {
      .type = FactorTypeOf(instruction), .lines = 1, .depth = instruction.scale_block()};
  problem.b_blocks = problem.a_blocks;
  return problem;
}

double FactorAt(const BlockScale* blocks, const std::vector<std::byte>& factors, int64_t line,
                int64_t p, int64_t k) {
  if (blocks == nullptr) return 1;
  const int64_t along = (k + blocks->depth - 1) / blocks->depth;
  const int code = std::to_integer<int>(
      factors[static_cast<size_t>(line / blocks->lines * along + p / blocks->depth)]);
  if (blocks->type == FactorType::kUe8m0) return std::ldexp(1.0, code - 127);
  return Decode(ElementType::kE4m3, static_cast<uint64_t>(code));
}

// Small integers times factors between a half and two: every sum is exact, whatever the adder cuts
// off.
class ExactFactorsTest : public testing::Test {
 protected:
  void Fill(Product& product) {
    const auto fill_factors = [&](const BlockScale* blocks, std::vector<std::byte>& factors) {
      for (std::byte& factor : factors) {
        constexpr uint8_t kUe8m0[] = {126, 127, 128};
        constexpr uint8_t kUe4m3[] = {0x30, 0x38, 0x3c, 0x40};  // 0.5, 1, 1.5, 2.
        factor = blocks->type == FactorType::kUe8m0
                     ? static_cast<std::byte>(kUe8m0[random_.Between(0, 2)])
                     : static_cast<std::byte>(kUe4m3[random_.Between(0, 3)]);
      }
    };
    fill_factors(product.problem.blocks_of_a(), product.a_factors);
    fill_factors(product.problem.blocks_of_b(), product.b_factors);
  }

  void ExpectExact(const Kernel& kernel, const Product& product, const Product& dense) {
    SCOPED_TRACE(std::string(kernel.name) + ", " + Describe(product.problem));
    const absl::StatusOr<std::vector<std::byte>> d = RunKernel(kernel, product, kTarget);
    ASSERT_THAT(d, IsOk());
    const Problem& problem = product.problem;
    const MatrixView a = {dense.problem.a, 1, dense.a.data()};
    const MatrixView b = {problem.b, 1, product.b.data()};
    const MatrixView got = {problem.d, 1, d->data()};
    for (int64_t i = 0; i < problem.m; ++i) {
      for (int64_t j = 0; j < problem.n; ++j) {
        double want = 0;
        for (int64_t p = 0; p < problem.k; ++p) {
          want += a.value(0, i, p) *
                  FactorAt(problem.blocks_of_a(), product.a_factors, i, p, problem.k) *
                  b.value(0, p, j) *
                  FactorAt(problem.blocks_of_b(), product.b_factors, j, p, problem.k);
        }
        ASSERT_EQ(got.value(0, i, j), want) << "row " << i << ", column " << j;
      }
    }
  }

  RandomSource random_;
};

TEST_F(ExactFactorsTest, EveryInstruction) {
  SCOPED_TRACE(random_.trace());
  for (const Kernel* const kernel : BlockScaledKernels()) {
    const mma::Instruction& instruction = *kernel->instruction;
    for (const int64_t k : {int64_t{1}, int64_t{instruction.scale_block()} - 1,
                            int64_t{instruction.k} + 5, 3 * int64_t{instruction.k}}) {
      for (int operand = 0; operand < 3; ++operand) {
        Problem problem = ScaledProblem(*kernel, 18, 9, k, Layouts{});
        problem.b_blocks.lines = 4;   // More columns than one may share a factor,
        problem.b_blocks.depth *= 2;  // and more of k than the instruction's own block.
        if (operand == 1) problem.a_scale = ScaleKind::kNone;
        if (operand == 2) problem.b_scale = ScaleKind::kNone;
        Product dense = FillCase(problem, Pattern::kOneHot, random_);
        // Values that every type holds.
        const auto draw = [&](const MatrixLayout& layout, std::vector<std::byte>& bytes) {
          for (int64_t line = 0; line < layout.lines(); ++line) {
            for (int64_t at = 0; at < layout.line_length(); ++at) {
              StoreBits(layout.type, bytes.data() + line * layout.line_stride_bytes(), at,
                        Encode(layout.type, static_cast<double>(random_.Between(-2, 2))));
            }
          }
        };
        draw(problem.a, dense.a);
        draw(problem.b, dense.b);
        Fill(dense);
        const Product product = instruction.is_sparse() ? WithSparseA(dense) : dense;
        ExpectExact(*kernel, product, dense);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Compared with the unit itself, with any data: one instruction after the other, with factors that
// are gathered here.
class FactorPlacesTest : public testing::Test {
 protected:
  // One tile of D of a product of one matrix.
  std::vector<uint64_t> Tile(const Kernel& kernel, const Product& product, int64_t row,
                             int64_t column) {
    const mma::Instruction& instruction = *kernel.instruction;
    const Problem& problem = product.problem;
    const MatrixView a = {problem.a, 1, product.a.data()};
    const MatrixView b = {problem.b, 1, product.b.data()};
    sim::MatrixUnit unit(instruction, kChip);
    const auto cells = static_cast<size_t>(instruction.m * instruction.n);
    std::vector<uint64_t> sums(cells);
    for (int64_t k = 0; k < problem.k; k += instruction.k) {
      std::vector<uint64_t> x(static_cast<size_t>(instruction.m * instruction.k));
      std::vector<uint64_t> y(static_cast<size_t>(instruction.k * instruction.n));
      std::vector<uint8_t> x_factors(static_cast<size_t>(instruction.m * instruction.scales));
      std::vector<uint8_t> y_factors(static_cast<size_t>(instruction.n * instruction.scales));
      const uint8_t one = mma::OneOf(instruction.scale);
      for (int p = 0; p < instruction.k; ++p) {
        const bool is_inside = k + p < problem.k;
        const int block = p / instruction.scale_block();
        for (int i = 0; i < instruction.m; ++i) {
          const bool is_there = is_inside && row + i < problem.m;
          if (is_there) x[static_cast<size_t>(i * instruction.k + p)] = a.bits(0, row + i, k + p);
          if (p % instruction.scale_block() != 0) continue;
          x_factors[static_cast<size_t>(i * instruction.scales + block)] =
              is_there ? Code(problem.a_blocks, product.a_factors, row + i, k + p, problem.k) : one;
        }
        for (int j = 0; j < instruction.n; ++j) {
          const bool is_there = is_inside && column + j < problem.n;
          if (is_there) {
            y[static_cast<size_t>(p * instruction.n + j)] = b.bits(0, k + p, column + j);
          }
          if (p % instruction.scale_block() != 0) continue;
          y_factors[static_cast<size_t>(block * instruction.n + j)] =
              is_there ? Code(problem.b_blocks, product.b_factors, column + j, k + p, problem.k)
                       : one;
        }
      }
      std::vector<uint64_t> next(cells);
      unit.Multiply(
          {.a = x, .a_k = {}, .b = y, .c = sums, .a_factors = x_factors, .b_factors = y_factors},
          next);
      sums = next;
    }
    return sums;
  }

  static void ExpectTile(const Kernel& kernel, const MatrixView& got,
                         const std::vector<uint64_t>& tile, int64_t row, int64_t column) {
    const mma::Instruction& instruction = *kernel.instruction;
    for (int64_t i = row; i < std::min(row + instruction.m, got.layout.rows); ++i) {
      for (int64_t j = column; j < std::min(column + instruction.n, got.layout.columns); ++j) {
        const auto at = static_cast<size_t>((i - row) * instruction.n + j - column);
        ASSERT_EQ(got.bits(0, i, j), tile[at]) << kernel.name << ", row " << i << ", column " << j;
      }
    }
  }

  static uint8_t Code(const BlockScale& blocks, const std::vector<std::byte>& factors, int64_t line,
                      int64_t p, int64_t k) {
    const int64_t along = (k + blocks.depth - 1) / blocks.depth;
    return std::to_integer<uint8_t>(
        factors[static_cast<size_t>(line / blocks.lines * along + p / blocks.depth)]);
  }

  RandomSource random_;
};

TEST_F(FactorPlacesTest, AnyDataAndAnyFactor) {
  SCOPED_TRACE(random_.trace());
  for (const Kernel* const kernel : BlockScaledKernels()) {
    const mma::Instruction& instruction = *kernel->instruction;
    if (instruction.is_sparse()) continue;
    const int64_t m = instruction.m + 3;
    const int64_t n = instruction.n + 1;
    for (int turn = 0; turn < (kIsSanitized ? 1 : 3); ++turn) {
      Layouts layouts;
      layouts.b = turn % 2 == 0 ? Order::kColumnMajor : Order::kRowMajor;
      layouts.d = turn % 3 == 0 ? Order::kColumnMajor : Order::kRowMajor;
      Problem problem = ScaledProblem(*kernel, m, n, 2 * instruction.k + 40, layouts);
      problem.a_blocks.lines = random_.Between(1, 5);
      Product product = FillCase(problem, Pattern::kRandom, random_);
      // All codes, sometimes including NaN.
      for (std::byte& factor : product.a_factors) factor = static_cast<std::byte>(random_.Bits());
      const absl::StatusOr<std::vector<std::byte>> d = RunKernel(*kernel, product, kTarget);
      ASSERT_THAT(d, IsOk());
      const MatrixView got = {problem.d, 1, d->data()};
      for (int64_t row = 0; row < m; row += instruction.m) {
        for (int64_t column = 0; column < n; column += instruction.n) {
          ExpectTile(*kernel, got, Tile(*kernel, product, row, column), row, column);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(FactorPlacesTest, MatricesOfABatchHaveTheirOwn) {
  SCOPED_TRACE(random_.trace());
  const Kernel& kernel = *BlockScaledKernels().front();
  for (int choice = 0; choice < 4; ++choice) {
    Layouts layouts;
    layouts.batch = 3;
    Problem problem = ScaledProblem(kernel, 5, 6, 70, layouts);
    problem.a_blocks.per_matrix = (choice & 1) != 0;
    problem.b_blocks.per_matrix = (choice & 2) != 0;
    const Product product = FillCase(problem, Pattern::kRandom, random_);
    const absl::StatusOr<std::vector<std::byte>> d = RunKernel(kernel, product, kTarget);
    ASSERT_THAT(d, IsOk());
    const MatrixView got = {problem.d, 3, d->data()};
    for (int64_t matrix = 0; matrix < 3; ++matrix) {
      Product one = product;
      one.problem.batch = 1;
      const auto part = [matrix](const std::vector<std::byte>& bytes, int64_t stride,
                                 int64_t size) {
        const auto first = bytes.begin() + matrix * stride;
        return std::vector<std::byte>(first, first + size);
      };
      one.a = part(product.a, problem.a.batch_stride_bytes, problem.a.batch_stride_bytes);
      one.b = part(product.b, problem.b.batch_stride_bytes, problem.b.batch_stride_bytes);
      one.a_factors = part(product.a_factors, problem.a_blocks.matrix_bytes(5, 70), 5 * 3);
      one.b_factors = part(product.b_factors, problem.b_blocks.matrix_bytes(6, 70), 6 * 3);
      const std::vector<uint64_t> tile = Tile(kernel, one, 0, 0);
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t j = 0; j < 6; ++j) {
          ASSERT_EQ(got.bits(matrix, i, j), tile[static_cast<size_t>(i * 8 + j)])
              << "matrix " << matrix << ", row " << i << ", column " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace gemmd
