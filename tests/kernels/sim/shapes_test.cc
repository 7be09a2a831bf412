// SPDX-License-Identifier: Apache-2.0
//
// Every kernel of an instruction, on shapes around its tile, compared with an exact product of
// small integers: right whatever the order and width of sums, so only layouts can be wrong.
#include <gtest/gtest.h>

#include <array>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/split_float.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"
#include "tests/kernels/sim/watched_code.h"
#include "tests/testing/random_source.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using mma::Instruction;

constexpr int kShards = 16;

// Instructions of a warpgroup exist in every width from 8 to 256 and differ in nothing else: the
// smallest width, an odd multiple of 8 and the largest stand for the others.
bool IsOneOfManyWidths(const Instruction& instruction) {
  return instruction.is_warpgroup() && instruction.n != 8 && instruction.n != 24 &&
         instruction.n != 256;
}

// With a sanitizer most widths are left out and, below, most shapes.
bool IsLeftOut(const Instruction& instruction) {
  return kIsSanitized && instruction.is_warpgroup() && instruction.n != 8 && instruction.n != 24;
}

enum class Extents { kFew, kAll };

std::vector<int64_t> ExtentsAbout(int64_t tile, Extents extents) {
  if (extents == Extents::kFew) return {0, 1, tile + 1};
  return {0, 1, tile - 1, tile, tile + 1, 2 * tile + 3};
}

struct Shape {
  int64_t m;
  int64_t n;
  int64_t k;
};

// All combinations of extents around the tile; for one width among many, only a shape that has a
// whole tile and a part of one in each direction.
std::vector<Shape> ShapesFor(const Instruction& instruction, Extents extents) {
  const int64_t m_tile = instruction.m * instruction.products();
  if (IsOneOfManyWidths(instruction)) {
    return {{m_tile + 1, instruction.n + 1, instruction.k + 1}};
  }
  std::vector<Shape> shapes;
  for (const int64_t m : ExtentsAbout(m_tile, extents)) {
    for (const int64_t n : ExtentsAbout(instruction.n, extents)) {
      for (const int64_t k : ExtentsAbout(instruction.k, extents)) shapes.push_back({m, n, k});
    }
  }
  return shapes;
}

// Drawn from few values, so that sums of 300 products stay below 2^11, up to which f16 represents
// every integer.
int32_t SmallInteger(ElementType type, RandomSource& random) {
  if (type == ElementType::kB1) return static_cast<int32_t>(random.Bits() & 1);
  const int32_t value = static_cast<int32_t>(random.Bits() % 4);  // 0 to 3.
  return FactsOf(type).is_signed ? value - 1 : value;
}

// A matrix of small integers: as bytes in a layout, and as numbers, row major.
struct IntegerMatrix {
  std::vector<std::byte> bytes;
  std::vector<int32_t> values;
};

IntegerMatrix Fill(const MatrixLayout& layout, RandomSource& random) {
  IntegerMatrix matrix;
  matrix.bytes.resize(static_cast<size_t>(layout.batch_stride_bytes));
  matrix.values.resize(static_cast<size_t>(layout.rows * layout.columns));
  for (int64_t i = 0; i < layout.rows; ++i) {
    for (int64_t j = 0; j < layout.columns; ++j) {
      const int32_t value = SmallInteger(layout.type, random);
      const bool is_row_major = layout.order == Order::kRowMajor;
      std::byte* line = matrix.bytes.data() + (is_row_major ? i : j) * layout.line_stride_bytes();
      StoreBits(layout.type, line, is_row_major ? j : i, Encode(layout.type, value));
      matrix.values[static_cast<size_t>(i * layout.columns + j)] = value;
    }
  }
  return matrix;
}

// The same for a sparse A: a dense one with zeros in every group, compressed.
IntegerMatrix FillSparse(const SparseLayout& layout, RandomSource& random) {
  const MatrixLayout dense =
      TightLayout("a", layout.type, Order::kRowMajor, layout.rows, layout.columns).value();
  IntegerMatrix matrix = Fill(dense, random);
  for (int64_t i = 0; i < layout.rows; ++i) {
    std::byte* line = matrix.bytes.data() + i * dense.line_stride_bytes();
    for (int64_t group = 0; group < layout.groups; ++group) {
      const int64_t units = layout.form.group_units;
      const int64_t dropped = random.Between(0, units - 1);
      // One unit is dropped and, if two must be, one of the others.
      const int64_t other = (dropped + random.Between(1, units - 1)) % units;
      for (int64_t u : {dropped, units == 2 ? dropped : other}) {
        for (int64_t e = 0; e < layout.form.unit; ++e) {
          const int64_t k = group * layout.form.group() + u * layout.form.unit + e;
          if (k >= layout.columns) continue;
          StoreBits(layout.type, line, k, 0);
          matrix.values[static_cast<size_t>(i * layout.columns + k)] = 0;
        }
      }
    }
  }
  std::vector<std::byte> compressed(static_cast<size_t>(layout.bytes));
  EXPECT_THAT(Compress("a", layout, matrix.bytes.data(), compressed.data()), IsOk());
  matrix.bytes = std::move(compressed);
  return matrix;
}

std::vector<int32_t> ExactProduct(const Instruction& instruction, const Problem& problem,
                                  const IntegerMatrix& a, const IntegerMatrix& b) {
  std::vector<int32_t> d(static_cast<size_t>(problem.m * problem.n));
  const bool is_xor = instruction.bit_count == mma::BitCount::kXor;
  for (int64_t i = 0; i < problem.m; ++i) {
    int32_t* line = d.data() + i * problem.n;
    for (int64_t k = 0; k < problem.k; ++k) {
      const int32_t x = a.values[static_cast<size_t>(i * problem.k + k)];
      const int32_t* y = b.values.data() + k * problem.n;
      for (int64_t j = 0; j < problem.n; ++j) line[j] += is_xor ? x ^ y[j] : x * y[j];
    }
  }
  return d;
}

// A chip that has the instruction, the verified one first.
mma::Chip ChipFor(const Instruction& instruction) {
  if (mma::SupportOn(instruction, mma::Chip::kSm90) != mma::Support::kUnavailable) {
    return mma::Chip::kSm90;
  }
  for (const mma::Chip chip : mma::kAllChips) {
    if (mma::SupportOn(instruction, chip) != mma::Support::kUnavailable) return chip;
  }
  ADD_FAILURE() << "no chip has " << std::string(mma::NameOf(instruction).view());
  return mma::Chip::kSm90;
}

class ShapesTest : public testing::Test {
 protected:
  Problem MakeProblem(const Kernel& kernel, int64_t m, int64_t n, int64_t k) {
    const Instruction& instruction = *kernel.instruction;
    const auto order = [&] { return random_.Flip() ? Order::kRowMajor : Order::kColumnMajor; };
    Problem problem;
    problem.m = m;
    problem.n = n;
    problem.k = k;
    problem.accumulation = kernel.recipe.accumulation;
    if (instruction.bit_count == mma::BitCount::kXor) problem.bit_operation = BitOperation::kXor;
    problem.a = instruction.is_sparse() ? TightSparseLayout("a", kernel.a, m, k).value()
                                        : TightLayout("a", kernel.a, order(), m, k).value();
    problem.b = TightLayout("b", kernel.b, order(), k, n).value();
    problem.d = TightLayout("d", instruction.d, order(), m, n).value();
    return problem;
  }

  void Check(const Kernel& kernel, int64_t m, int64_t n, int64_t k) {
    const Problem problem = MakeProblem(kernel, m, n, k);
    ASSERT_THAT(Validate(problem), IsOk());
    ASSERT_THAT(kernel.supports(problem), IsOk());
    const Instruction& instruction = *kernel.instruction;
    const IntegerMatrix a = instruction.is_sparse()
                                ? FillSparse(SparseLayoutOf("a", kernel.a, m, k).value(), random_)
                                : Fill(problem.a, random_);
    const IntegerMatrix b = Fill(problem.b, random_);
    constexpr std::byte kPoison{0xff};  // NaN, if it is not an integer.
    std::vector<std::byte> workspace(static_cast<size_t>(kernel.workspace_bytes(problem).value()),
                                     kPoison);
    std::vector<std::byte> d(static_cast<size_t>(problem.d.batch_stride_bytes), kPoison);
    const mma::Chip chip = ChipFor(instruction);
    ASSERT_THAT(kernel.launch({.problem = problem,
                               .target = {.kind = DeviceKind::kSim, .chip = chip},
                               .a = a.bytes.data(),
                               .b = b.bytes.data(),
                               .c = nullptr,
                               .bias = nullptr,
                               .a_scale = {},
                               .b_scale = {},
                               .d = d.data(),
                               .workspace = absl::MakeSpan(workspace)}),
                IsOk());
    const bool has_sums =
        problem.has_output() && problem.has_product() && (!kernel.recipe.splits_f32 || IsSplit(k));
    ASSERT_EQ(TakeWatchedCode(), has_sums ? WantedCode(instruction) : nullptr)
        << "not the vector code that this processor has";
    const std::vector<int32_t> want = ExactProduct(instruction, problem, a, b);
    const bool is_row_major = problem.d.order == Order::kRowMajor;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const std::byte* line = d.data() + (is_row_major ? i : j) * problem.d.line_stride_bytes();
        const double got =
            Decode(instruction.d, LoadBits(instruction.d, line, is_row_major ? j : i));
        ASSERT_EQ(got, want[static_cast<size_t>(i * n + j)])
            << m << "x" << n << "x" << k << ", row " << i << ", column " << j << ", "
            << random_.trace();
      }
    }
    ++products_;
  }

  RandomSource random_;
  int64_t products_ = 0;
};

// Requests have no sparse form for it.
bool HasNoPortableForm(const Kernel& kernel) {
  return kernel.instruction->is_sparse() &&
         SparseFormOf(kernel.a)->name() != NameOf(SparsityOf(*kernel.instruction));
}

TEST_F(ShapesTest, EveryKernelRunsTheVectorCodeOfTheProcessor) {
  for (const Kernel& kernel : Catalog(DeviceKind::kSim)) {
    if (HasNoPortableForm(kernel)) continue;
    SCOPED_TRACE(std::string(kernel.name));
    Check(kernel, 1, 1, kernel.recipe.splits_f32 ? kSplitPromotionK : 1);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(products_, 0);
}

class ExactTest : public ShapesTest, public testing::WithParamInterface<int> {
 protected:
  void CheckShapes(const Kernel& kernel, Extents extents) {
    SCOPED_TRACE(std::string(kernel.name));
    for (const Shape& shape : ShapesFor(*kernel.instruction, extents)) {
      Check(kernel, shape.m, shape.n, shape.k);
      if (HasFatalFailure()) return;
    }
  }

  // One kernel in several, starting from the parameter's.
  void CheckKernels(Extents extents) {
    const absl::Span<const Kernel> kernels = Catalog(DeviceKind::kSim);
    for (size_t i = static_cast<size_t>(GetParam()); i < kernels.size(); i += kShards) {
      const Kernel& kernel = kernels[i];
      if (HasNoPortableForm(kernel) || IsLeftOut(*kernel.instruction)) continue;
      CheckShapes(kernel, extents);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(products_, 0);
  }
};

TEST_P(ExactTest, SmallIntegersAreExactInEveryShape) { CheckKernels(Extents::kFew); }
INSTANTIATE_TEST_SUITE_P(Shards, ExactTest, testing::Range(0, kShards));

class ExactExhaustive : public ExactTest {};
TEST_P(ExactExhaustive, SmallIntegersAreExactInEveryShape) { CheckKernels(Extents::kAll); }
INSTANTIATE_TEST_SUITE_P(Shards, ExactExhaustive, testing::Range(0, kShards));

// One kernel of each family in all shapes.
class FamilyExactTest : public ExactTest {};
constexpr std::string_view kFamilies[] = {"mma.m16n8k16.f32.f16.f16.f32",
                                          "mma.m16n8k8.f32.tf32.tf32.f32",
                                          "mma.m16n8k32.s32.s8.s8.s32",
                                          "mma.m8n8k128.s32.b1.b1.s32.xor.popc",
                                          "mma.m16n8k4.rp.f64",
                                          "mma.m8n8k4.row.row.f32.f16.f16.f16",
                                          "mma.sp.m16n8k16.f32.f16.f16.f32",
                                          "wgmma.m64n24k16.f32.bf16.bf16",
                                          "wmma.m16n16k16.row.col.f32.f16.f16.f32"};
TEST_P(FamilyExactTest, SmallIntegersAreExactInEveryShape) {
  const absl::StatusOr<const Kernel*> kernel =
      FindKernel(kFamilies[static_cast<size_t>(GetParam())]);
  ASSERT_THAT(kernel, IsOk());
  CheckShapes(**kernel, kIsSanitized ? Extents::kFew : Extents::kAll);
}
INSTANTIATE_TEST_SUITE_P(Families, FamilyExactTest,
                         testing::Range(0, static_cast<int>(std::size(kFamilies))));

}  // namespace
}  // namespace gemmd
