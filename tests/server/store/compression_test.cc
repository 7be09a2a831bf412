// SPDX-License-Identifier: Apache-2.0
//
// Compression in steps gives the same bytes as pruning and packing whole matrices.
#include "server/store/compression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/matrix/sparse24.h"
#include "tests/server/store/padded_spec.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

class CompressionTest : public testing::TestWithParam<ElementType> {
 protected:
  const ElementType type_ = GetParam();
  const SparseForm form_ = SparseFormOf(type_).value();
  RandomSource random_;

  std::vector<std::byte> AnyBytes(int64_t bytes) {
    std::vector<std::byte> any(static_cast<size_t>(bytes));
    for (std::byte& byte : any) byte = static_cast<std::byte>(random_.Bits());
    return any;
  }

  // The lines of one matrix without gaps.
  static std::vector<std::byte> Tight(const TensorSpec& spec, const std::vector<std::byte>& bytes,
                                      int64_t matrix) {
    const MatrixLayout& layout = spec.layout;
    const auto line = static_cast<size_t>((layout.columns * BitsOf(layout.type) + 7) / 8);
    std::vector<std::byte> tight;
    for (int64_t row = 0; row < layout.rows; ++row) {
      const auto from =
          bytes.begin() + matrix * layout.batch_stride_bytes + row * layout.line_stride_bytes();
      tight.insert(tight.end(), from, from + static_cast<std::ptrdiff_t>(line));
    }
    return tight;
  }

  // The library's result for each matrix as a whole.
  std::vector<std::byte> Expected(const TensorSpec& spec, const std::vector<std::byte>& dense,
                                  const TensorSpec* mask_spec = nullptr,
                                  const std::vector<std::byte>& mask = {}) {
    const SparseLayout layout =
        SparseLayoutOf("a", type_, spec.layout.rows, spec.layout.columns).value();
    std::vector<std::byte> all;
    for (int64_t matrix = 0; matrix < spec.matrices; ++matrix) {
      std::vector<std::byte> one = Tight(spec, dense, matrix);
      if (mask_spec == nullptr) {
        PruneByMagnitude(layout, one.data());
      } else {
        EXPECT_FALSE(KeepMarked(layout, Tight(*mask_spec, mask, matrix).data(), one.data()));
      }
      std::vector<std::byte> compressed(static_cast<size_t>(layout.bytes));
      EXPECT_THAT(Compress("a", layout, one.data(), compressed.data()), IsOk());
      all.insert(all.end(), compressed.begin(), compressed.end());
    }
    return all;
  }

  // Returns the number of steps.
  absl::StatusOr<int> Run(const TensorSpec& spec, const std::vector<std::byte>& dense,
                          std::vector<std::byte>& compressed, const TensorSpec* mask_spec = nullptr,
                          const std::vector<std::byte>& mask = {}) {
    const absl::StatusOr<CompressionPlan> plan = PlanCompression(spec, mask_spec);
    if (!plan.ok()) return plan.status();
    compressed.assign(static_cast<size_t>(plan->result.bytes), std::byte{0xee});
    Compression compression(*plan, dense.data(), mask_spec == nullptr ? nullptr : mask.data(),
                            compressed.data());
    Compression::Scratch scratch;
    for (int steps = 1;; ++steps) {
      const absl::StatusOr<bool> is_done = compression.Step(scratch);
      if (!is_done.ok()) return is_done.status();
      if (*is_done) return steps;
    }
  }

  // A mask that keeps as many units as allowed: each group makes its own choice.
  std::vector<std::byte> AnyMask(const TensorSpec& spec) {
    const MatrixLayout& layout = spec.layout;
    std::vector<std::byte> mask(static_cast<size_t>(spec.bytes));
    for (int64_t line = 0; line < spec.matrices * layout.rows; ++line) {
      std::byte* const bytes = mask.data() + line * layout.line_stride_bytes();
      for (int64_t first = 0; first < layout.columns; first += form_.group()) {
        for (int64_t kept = 0; kept < form_.kept_units(); ++kept) {
          const int64_t unit = random_.Between(0, form_.group_units - 1);
          for (int64_t i = 0; i < form_.unit; ++i) {
            const int64_t column = first + unit * form_.unit + i;
            if (column < layout.columns) StoreBits(ElementType::kB1, bytes, column, 1);
          }
        }
      }
    }
    return mask;
  }
};

struct Shape {
  int64_t rows;
  int64_t columns;
  int64_t padding;
  int64_t matrices;
};

std::vector<Shape> SmallShapes() {
  return {{1, 1, 0, 1},  {3, 7, 0, 1},  {5, 64, 0, 1},   {9, 33, 5, 1}, {4, 30, 2, 3},
          {17, 1, 0, 2}, {2, 13, 0, 9}, {1, 100, 28, 1}, {8, 96, 0, 2}};
}

TEST_P(CompressionTest, GivesTheBytesOfTheLibrary) {
  for (const Shape& s : SmallShapes()) {
    const TensorSpec spec = PaddedSpec(type_, s.rows, s.columns, s.padding, s.matrices);
    // Any bits: NaN, infinities, zeros of both signs, and garbage beyond the end of a line.
    const std::vector<std::byte> dense = AnyBytes(spec.bytes);
    std::vector<std::byte> compressed;
    ASSERT_THAT(Run(spec, dense, compressed), IsOk());
    EXPECT_EQ(compressed, Expected(spec, dense)) << s.rows << "x" << s.columns;
    const TensorSpec mask_spec =
        PaddedSpec(ElementType::kB1, s.rows, s.columns, 3 * s.padding, s.matrices);
    const std::vector<std::byte> mask = AnyMask(mask_spec);
    ASSERT_THAT(Run(spec, dense, compressed, &mask_spec, mask), IsOk());
    EXPECT_EQ(compressed, Expected(spec, dense, &mask_spec, mask)) << s.rows << "x" << s.columns;
  }
}

TEST_P(CompressionTest, GoesInSteps) {
  // Cases: one row longer than a step; many rows that together are; many small matrices that are.
  const int64_t step = Compression::kStepBytes * 8 / BitsOf(type_);
  for (const Shape& s : {Shape{2, step + 777, 0, 1}, Shape{step / 500, 999, 0, 1},
                         Shape{1, 5, 0, Compression::kStepBytes / 32}}) {
    const TensorSpec spec = PaddedSpec(type_, s.rows, s.columns, s.padding, s.matrices);
    const std::vector<std::byte> dense = AnyBytes(spec.bytes);
    const TensorSpec mask_spec = PaddedSpec(ElementType::kB1, s.rows, s.columns, 0, s.matrices);
    const std::vector<std::byte> mask = AnyMask(mask_spec);
    std::vector<std::byte> compressed;
    const absl::StatusOr<int> steps = Run(spec, dense, compressed, &mask_spec, mask);
    ASSERT_THAT(steps, IsOk());
    EXPECT_GT(*steps, 1);
    EXPECT_TRUE(compressed == Expected(spec, dense, &mask_spec, mask))
        << s.rows << "x" << s.columns;
  }
}

TEST_P(CompressionTest, NamesTheGroupThatAMaskLeavesTooFull) {
  // The row is longer than a step, and the group lies in the second step.
  const int64_t step = Compression::kStepBytes * 8 / BitsOf(type_);
  const int64_t column = (step + 2048) / form_.group() * form_.group();
  const TensorSpec spec = PaddedSpec(type_, 2, step + 5000, 0, 2);
  const TensorSpec mask_spec = PaddedSpec(ElementType::kB1, 2, step + 5000, 0, 2);
  std::vector<std::byte> mask(static_cast<size_t>(mask_spec.bytes));
  std::byte* const line = mask.data() + 3 * mask_spec.layout.line_stride_bytes();
  for (int64_t i = 0; i < form_.group(); ++i) StoreBits(ElementType::kB1, line, column + i, 1);
  std::vector<std::byte> compressed;
  const std::string group = std::to_string(column / form_.group());
  const std::string units = std::to_string(form_.group_units);
  const std::string most = std::to_string(form_.kept_units());
  EXPECT_THAT(Run(spec, AnyBytes(spec.bytes), compressed, &mask_spec, mask),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "mask: matrix 1, row 1, group " + group + ": got " + units +
                           (form_.unit == 2 ? " pairs" : " elements") +
                           " to be kept, want at most " + most));
}

TEST_P(CompressionTest, EmptyTensorsAreDoneAtOnce) {
  for (const Shape& s : {Shape{0, 8, 0, 1}, Shape{8, 0, 0, 1}, Shape{4, 4, 0, 0},
                         Shape{0, 4, 0, int64_t{1} << 60}}) {
    std::vector<std::byte> compressed;
    const absl::StatusOr<int> steps =
        Run(PaddedSpec(type_, s.rows, s.columns, 0, s.matrices), {}, compressed);
    ASSERT_THAT(steps, IsOk());
    EXPECT_EQ(*steps, 1);
    EXPECT_TRUE(compressed.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CompressionTest, testing::ValuesIn([] {
                           std::vector<ElementType> types;
                           for (ElementType type : kAllElementTypes) {
                             if (SparseFormOf(type)) types.push_back(type);
                           }
                           return types;
                         }()),
                         [](const auto& param_info) {
                           return std::string(NameOf(param_info.param));
                         });

TEST(CompressionPlanTest, RefusesWhatHasNoSparseForm) {
  const auto refusal = [](const TensorSpec& dense, const TensorSpec* mask = nullptr) {
    const absl::Status status = PlanCompression(dense, mask).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  for (const ElementType type : {ElementType::kF64, ElementType::kB1, ElementType::kS32}) {
    EXPECT_THAT(refusal(PaddedSpec(type, 4, 4)), HasSubstr("tensor.sparsity: got 2:4 of type "));
  }
  TensorSpec columns = PaddedSpec(ElementType::kF16, 4, 4);
  columns.layout.order = Order::kColumnMajor;
  EXPECT_EQ(refusal(columns), "tensor.order: got column, want row");
  const TensorSpec sparse =
      MakeTensorSpec(TightSparseLayout("spec", ElementType::kF16, 4, 4).value(), 1, {}).value();
  EXPECT_EQ(refusal(sparse), "tensor: got a sparse tensor, want a dense one");
  TensorSpec scaled = PaddedSpec(ElementType::kS8, 4, 8);
  scaled.scale.resize(8);
  EXPECT_THAT(refusal(scaled), HasSubstr("tensor.scale.values: got 8 values, want 0, 1 or rows"));

  const TensorSpec dense = PaddedSpec(ElementType::kF16, 4, 8, 0, 2);
  const TensorSpec bytes = PaddedSpec(ElementType::kU8, 4, 8, 0, 2);
  EXPECT_EQ(refusal(dense, &bytes), "mask.type: got u8, want b1");
  const TensorSpec short_mask = PaddedSpec(ElementType::kB1, 4, 7, 0, 2);
  EXPECT_EQ(refusal(dense, &short_mask),
            "mask: got 2 matrices of 4x7, want those of the tensor, 2 matrices of 4x8");
  TensorSpec mask_of_columns = PaddedSpec(ElementType::kB1, 4, 8, 0, 2);
  mask_of_columns.layout.order = Order::kColumnMajor;
  EXPECT_EQ(refusal(dense, &mask_of_columns), "mask.order: got column, want row");
}

TEST(CompressionPlanTest, CarriesFactorsOver) {
  for (const size_t count : {0, 1, 4}) {
    TensorSpec scaled = PaddedSpec(ElementType::kS8, 4, 8, 8, 3);
    scaled.scale.assign(count, 0.5F);
    const absl::StatusOr<CompressionPlan> plan = PlanCompression(scaled, nullptr);
    ASSERT_THAT(plan, IsOk());
    EXPECT_EQ(plan->result.scale, scaled.scale);
    EXPECT_EQ(plan->result.matrices, 3);
    EXPECT_TRUE(plan->result.layout.is_sparse());
  }
}

}  // namespace
}  // namespace gemmd
