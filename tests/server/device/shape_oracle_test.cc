// SPDX-License-Identifier: Apache-2.0
//
// Compares every size computed in 64 bits with the same in 128 bits: numbers, packed lines, sparse
// layouts, whole problems, jobs in a staging area, panels. Extents are chosen so that about half of
// the sizes exceed 63 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/matrix/layout.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/problem.h"
#include "server/crossing/job_layout.h"
#include "server/device/large_job.h"
#include "server/store/tensor.h"
#include "tests/testing/big_size.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

ElementType AnyType(RandomSource& random) {
  return kAllElementTypes[static_cast<size_t>(
      random.Between(0, static_cast<int64_t>(kAllElementTypes.size()) - 1))];
}

// A small number, or one next to a power of two of at most `bits` bits. Subtracts the bits used.
int64_t Extent(RandomSource& random, int64_t& bits) {
  if (random.Between(0, 3) == 0) return random.Between(0, 40);
  const int64_t power = random.Between(0, std::max<int64_t>(0, std::min<int64_t>(62, bits)));
  bits -= power;
  return std::max<int64_t>(0, (int64_t{1} << power) + random.Between(-2, 2));
}

int64_t AnyNumber(RandomSource& random) {
  int64_t bits = 62;
  return Extent(random, bits);
}

BigSize LineBytes(ElementType type, int64_t elements) {
  return (BigSize(elements) * BitsOf(type) + 7) / 8;
}

// Checks that the size is absent exactly if it exceeds 63 bits, and otherwise equal.
void ExpectSame(const std::optional<int64_t>& got, BigSize want) {
  ASSERT_EQ(got.has_value(), want.fits());
  if (got) {
    ASSERT_EQ(*got, want.value());
  }
}

TEST(ShapeOracleTest, NumbersAndLines) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (int64_t i = RandomSource::Cases(50'000); i > 0; --i) {
    const int64_t a = AnyNumber(random);
    const int64_t b = AnyNumber(random);
    ExpectSame((Checked(a) * Checked(b)).value(), BigSize(a) * b);
    ExpectSame((Checked(a) + Checked(b)).value(), BigSize(a) + b);
    const int64_t c = AnyNumber(random);
    // An overflow remains one even if a factor of 0 follows.
    const BigSize product = BigSize(a) * b;
    ExpectSame((Checked(a) * Checked(b) * Checked(c)).value(),
               product.fits() ? product * c : product);
    const ElementType type = AnyType(random);
    ExpectSame(PackedBytes(type, a).value(),
               (BigSize(a / 8) * BitsOf(type)) + (BigSize(a % 8) * BitsOf(type) + 7) / 8);
  }
}

TEST(ShapeOracleTest, SparseLayouts) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  int64_t fits = 0;
  const int64_t cases = RandomSource::Cases(30'000);
  for (int64_t i = 0; i < cases; ++i) {
    const ElementType type = AnyType(random);
    int64_t bits = random.Between(50, 68);
    const int64_t rows = Extent(random, bits);
    const int64_t columns = Extent(random, bits);
    const auto layout = SparseLayoutOf("a", type, rows, columns);
    const std::optional<SparseForm> form = SparseFormOf(type);
    if (!form) {
      ASSERT_FALSE(layout.ok());
      continue;
    }
    const int64_t groups = columns / form->group() + (columns % form->group() != 0 ? 1 : 0);
    const BigSize kept = BigSize(groups) * (form->group() / 2);
    // Eight elements take as many bytes as one has bits.
    const BigSize values = kept.fits() ? BigSize(kept.value() / 8) * BitsOf(type) +
                                             (BigSize(kept.value() % 8) * BitsOf(type) + 7) / 8
                                       : kept;
    const BigSize indices = BigSize(groups / 8) * form->index_bits() +
                            (BigSize(groups % 8) * form->index_bits() + 7) / 8;
    const BigSize dense_line =
        BigSize(columns / 8) * BitsOf(type) + (BigSize(columns % 8) * BitsOf(type) + 7) / 8;
    const BigSize bytes = (values + indices) * rows;
    const BigSize dense = dense_line * rows;
    const bool are_lines = dense_line.fits() && values.fits() && indices.fits();
    if (layout.ok()) {
      ++fits;
      ASSERT_EQ(BigSize(layout->bytes), bytes);
      ASSERT_EQ(BigSize(layout->dense_bytes), dense);
      ASSERT_EQ(BigSize(layout->value_line_bytes), values);
      ASSERT_EQ(BigSize(layout->index_line_bytes), indices);
      if (rows > 0) {
        ASSERT_LE(BigSize(layout->indices_offset(rows - 1)), bytes);
      }
    } else {
      ASSERT_FALSE(are_lines && bytes.fits() && dense.fits())
          << rows << "x" << columns << " " << NameOf(type) << ": " << layout.status();
    }
  }
  EXPECT_GT(fits, cases / 8);
}

// A problem with matching types, whose lines and matrices may have gaps.
class AnyProblem {
 public:
  explicit AnyProblem(RandomSource& random) : random_(random) {
    int64_t bits = random.Between(30, 70);
    problem_.m = Extent(random, bits);
    problem_.n = Extent(random, bits);
    problem_.k = Extent(random, bits);
    problem_.batch = random.Flip() ? 1 : Extent(random, bits);
    do {
      problem_.a.type = AnyType(random);
      problem_.b.type = random.Flip() ? problem_.a.type : AnyType(random);
    } while (!DefaultAccumulation(problem_.a.type, problem_.b.type).ok());
    problem_.accumulation = DefaultAccumulation(problem_.a.type, problem_.b.type).value();
    Lay(problem_.a, problem_.m, problem_.k);
    Lay(problem_.b, problem_.k, problem_.n);
    problem_.d.type = problem_.accumulation;
    Lay(problem_.d, problem_.m, problem_.n);
    problem_.c.type = ElementType::kF16;
    if (random.Flip()) {
      problem_.beta = 1;
      Lay(problem_.c, problem_.m, problem_.n);
    }
    problem_.bias_axis = static_cast<BiasAxis>(random.Between(0, 2));
    if (BitsOf(problem_.a.type) == 8) problem_.a_scale = ScaleKind::kVector;
  }

  const Problem& problem() const { return problem_; }

  // Whether the problem meets Validate's conditions, in 128 bits.
  bool IsValid() const {
    const Problem& p = problem_;
    const bool is_empty = p.m == 0 || p.n == 0 || p.k == 0 || p.batch == 0;
    const BigSize operations = is_empty ? BigSize(0) : BigSize(2) * p.m * p.n * p.k * p.batch;
    const bool is_apart = p.batch <= 1 || One(p.d).second <= BigSize(p.d.batch_stride_bytes);
    // The size of one matrix of D counts even if the batch is empty.
    return One(p.d).first.fits() && Fits(p.a) && Fits(p.b) && Fits(p.d) &&
           (!p.has_c() || Fits(p.c)) && is_apart && BiasBytes().fits() && operations.fits() &&
           (Read() + Full(p.d)).fits();
  }

  BigSize Operations() const {
    const Problem& p = problem_;
    return BigSize(2) * p.m * p.n * p.k * p.batch;
  }
  BigSize Read() const {
    const Problem& p = problem_;
    BigSize bytes = BiasBytes();
    if (p.has_product()) bytes = bytes + Least(p.a) + Least(p.b);
    return p.has_c() ? bytes + Least(p.c) : bytes;
  }
  BigSize BiasBytes() const {
    if (problem_.bias_axis == BiasAxis::kNone) return 0;
    const int64_t count = problem_.bias_axis == BiasAxis::kRows ? problem_.m : problem_.n;
    return LineBytesOf(problem_.bias_type, count);
  }
  BigSize Least(const MatrixLayout& layout) const {
    return problem_.batch == 0 ? BigSize(0) : Before(layout) + One(layout).second;
  }
  BigSize Full(const MatrixLayout& layout) const {
    return problem_.batch == 0 ? BigSize(0) : Before(layout) + One(layout).first;
  }

 private:
  static BigSize LineBytesOf(ElementType type, int64_t elements) {
    return BigSize(elements / 8) * BitsOf(type) + (BigSize(elements % 8) * BitsOf(type) + 7) / 8;
  }

  void Lay(MatrixLayout& layout, int64_t rows, int64_t columns) {
    layout.order = random_.Flip() ? Order::kRowMajor : Order::kColumnMajor;
    layout.rows = rows;
    layout.columns = columns;
    layout.leading_dimension = layout.line_length();
    if (random_.Between(0, 3) == 0) {
      layout.leading_dimension = std::max(layout.line_length(), AnyNumber(random_));
    }
    const BigSize matrix = LineBytes(layout.type, layout.leading_dimension) * layout.lines();
    layout.batch_stride_bytes = matrix.fits() ? matrix.value() : INT64_MAX / 8 * 8;
    if (random_.Between(0, 3) == 0) layout.batch_stride_bytes = AnyNumber(random_) / 8 * 8;
  }

  // The bytes of one matrix with the padding of its last line, and without it.
  static std::pair<BigSize, BigSize> One(const MatrixLayout& layout) {
    if (layout.empty()) return {0, 0};
    const BigSize stride = LineBytes(layout.type, layout.leading_dimension);
    return {stride * layout.lines(),
            stride * (layout.lines() - 1) + LineBytesOf(layout.type, layout.line_length())};
  }
  BigSize Before(const MatrixLayout& layout) const {
    if (layout.empty() || problem_.batch == 0) return 0;
    return BigSize(problem_.batch - 1) * layout.batch_stride_bytes;
  }
  // Strides of lines are computed in bits.
  bool Fits(const MatrixLayout& layout) const {
    return (BigSize(layout.leading_dimension) * BitsOf(layout.type) + 7).fits() &&
           Full(layout).fits() && Least(layout).fits();
  }

  RandomSource& random_;
  Problem problem_;
};

TEST(ShapeOracleTest, Problems) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  int64_t valid = 0;
  const int64_t cases = RandomSource::Cases(20'000);
  for (int64_t i = 0; i < cases; ++i) {
    const AnyProblem any(random);
    const Problem& problem = any.problem();
    const absl::Status status = Validate(problem);
    ASSERT_EQ(status.ok(), any.IsValid()) << Describe(problem) << ": " << status;
    if (!status.ok()) continue;
    ++valid;
    ASSERT_EQ(BigSize(Operations(problem)), any.Operations());
    ASSERT_EQ(BigSize(BytesRead(problem)), any.Read());
    ASSERT_EQ(BigSize(BytesWritten(problem)), any.Full(problem.d));
    ASSERT_EQ(Validate(Transposed(problem)).ok(), true);
    const auto tensor = MakeTensorSpec(problem.d, problem.batch, {});
    if (tensor.ok()) {
      ASSERT_GE(tensor->bytes, 0);
    }
  }
  EXPECT_GT(valid, cases / 16);
  EXPECT_LT(valid, cases * 15 / 16);
}

TEST(ShapeOracleTest, Jobs) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (int64_t i = RandomSource::Cases(20'000); i > 0; --i) {
    const AnyProblem any(random);
    const Problem& problem = any.problem();
    if (!any.IsValid()) continue;
    BigSize end = 0;
    bool fits = true;
    const auto take = [&](BigSize bytes) {
      const BigSize padded = end + bytes + (kJobAlignment - 1);
      fits = fits && padded.fits();
      end = padded / kJobAlignment * kJobAlignment;
    };
    if (problem.has_product()) {
      take(any.Least(problem.a));
      take(any.Least(problem.b));
    }
    if (problem.has_c()) take(any.Least(problem.c));
    take(any.BiasBytes());
    if (problem.a_scale == ScaleKind::kVector) take(BigSize(problem.m) * 4);
    const BigSize inputs = end;
    take(any.Full(problem.d));
    const auto layout = LayOutJob(problem);
    ASSERT_EQ(layout.ok(), fits) << Describe(problem);
    if (!fits) continue;
    ASSERT_EQ(BigSize(layout->input_bytes), inputs);
    ASSERT_EQ(BigSize(layout->end), end);
    ASSERT_GE(layout->staged_out_bytes(), layout->d.bytes);
  }
}

// Checks that the range is not empty and lies within `whole`.
void ExpectWithin(const Panel::Extent& extent, int64_t whole) {
  ASSERT_GE(extent.first, 0);
  ASSERT_GT(extent.count, 0);
  ASSERT_LE(extent.first, whole - extent.count);
}

TEST(ShapeOracleTest, Panels) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  int64_t divided = 0;
  const int64_t cases = RandomSource::Cases(500);
  for (int64_t i = 0; i < cases; ++i) {
    const AnyProblem any(random);
    const Problem& problem = any.problem();
    if (!any.IsValid() || !problem.has_output()) continue;
    const int64_t max_bytes = int64_t{1} << random.Between(8, 40);
    const auto plan = PanelPlan::Of(problem, {}, nullptr, max_bytes);
    if (!plan.ok()) continue;
    const int64_t count = plan->count();
    ASSERT_GE(count, 1);
    divided += count > 1 ? 1 : 0;
    // The first panel begins D, and the last one ends it.
    const Panel first = plan->at(0);
    const Panel last = plan->at(count - 1);
    ASSERT_EQ(first.matrices.first + first.rows.first + first.columns.first, 0);
    ASSERT_EQ(last.matrices.first + last.matrices.count, problem.batch);
    ASSERT_EQ(last.rows.first + last.rows.count, problem.m);
    ASSERT_EQ(last.columns.first + last.columns.count, problem.n);
    for (const int64_t index : {int64_t{0}, count - 1, random.Between(0, count - 1)}) {
      const Panel panel = plan->at(index);
      ExpectWithin(panel.matrices, problem.batch);
      ExpectWithin(panel.rows, problem.m);
      ExpectWithin(panel.columns, problem.n);
      const PanelProblem part = ProblemOfPanel(problem, {}, panel);
      ASSERT_THAT(Validate(part.problem), IsOk()) << Describe(problem);
      const auto bytes = MemoryOf(part.problem, part.places, nullptr);
      ASSERT_THAT(bytes, IsOk());
      ASSERT_LE(*bytes, max_bytes) << Describe(problem);
    }
  }
  EXPECT_GT(divided, cases / 100);
}

// The last panels have lines of A or B that are no whole chunks. The kernel packs these, though it
// reads those of other panels in place.
TEST(ShapeOracleTest, RaggedLastPanelsFit) {
  const Kernel* const kernel =
      FindKernel("wgmma.m64n256k16.f32.f16.f16_128x256x64_w8x1_s3").value();
  int64_t ragged = 0;
  for (const bool is_a : {true, false}) {
    Problem problem;
    problem.m = is_a ? 3 * 2048 - 1 : 64;
    problem.n = is_a ? 64 : 3 * 2048 - 1;
    problem.k = 4096;
    const ElementType f16 = ElementType::kF16;
    problem.a = TightLayout("a", f16, Order::kColumnMajor, problem.m, problem.k).value();
    problem.b = TightLayout("b", f16, Order::kRowMajor, problem.k, problem.n).value();
    problem.d = TightLayout("d", f16, Order::kRowMajor, problem.m, problem.n).value();
    const int64_t whole = MemoryOf(problem, {}, kernel).value();
    for (int64_t max_bytes = whole / 16; max_bytes < whole; max_bytes += whole / 64) {
      const auto plan = PanelPlan::Of(problem, {}, kernel, max_bytes);
      ASSERT_THAT(plan, IsOk());
      for (int64_t index = 0; index < plan->count(); ++index) {
        const PanelProblem part = ProblemOfPanel(problem, {}, plan->at(index));
        EXPECT_LE(MemoryOf(part.problem, part.places, kernel).value(), max_bytes)
            << "panel " << index << " of " << plan->count();
      }
      ragged += plan->count() > 2 ? 1 : 0;
    }
  }
  EXPECT_GT(ragged, 10);
}

}  // namespace
}  // namespace gemmd
