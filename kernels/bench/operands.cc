// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/operands.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <random>
#include <vector>

#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd::bench {
namespace {

constexpr int64_t kPage = 4096;
constexpr int kChecked = 1000;

void Fill(const MatrixLayout& layout, std::mt19937& random, std::byte* data) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(layout.line_length()));
  for (int64_t i = 0; i < layout.lines(); ++i) {
    std::byte* line = data + i * layout.line_stride_bytes();
    if (IsInteger(layout.type)) {
      for (int64_t j = 0; j < layout.line_stride_bytes(); ++j) {
        line[j] = static_cast<std::byte>(random());
      }
    } else {
      for (float& value : values) value = normal(random);
      EncodeLine(layout.type, values.data(), layout.line_length(), line);
    }
  }
}

double ValueAt(const MatrixLayout& layout, const std::byte* data, int64_t row, int64_t column) {
  const bool is_row_major = layout.order == Order::kRowMajor;
  const std::byte* line = data + (is_row_major ? row : column) * layout.line_stride_bytes();
  return Decode(layout.type, LoadBits(layout.type, line, is_row_major ? column : row));
}

struct Sum {
  double value = 0;
  double magnitude = 0;
  int64_t integer = 0;
};

Sum Reference(const Problem& problem, const Operands& operands, int64_t row, int64_t column) {
  Sum sum;
  for (int64_t p = 0; p < problem.k; ++p) {
    const double a = ValueAt(problem.a, operands.a.data(), row, p);
    const double b = ValueAt(problem.b, operands.b.data(), p, column);
    sum.value += a * b;
    sum.magnitude += std::fabs(a * b);
    if (IsInteger(problem.a.type)) sum.integer += static_cast<int64_t>(a) * static_cast<int64_t>(b);
  }
  return sum;
}

}  // namespace

AlignedBytes::AlignedBytes(int64_t bytes) {
  const int64_t rounded = std::max<int64_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  data_.reset(static_cast<std::byte*>(
      std::aligned_alloc(static_cast<size_t>(kPage), static_cast<size_t>(rounded))));
  if (data_ == nullptr) throw std::bad_alloc();
}

void AlignedBytes::Free::operator()(std::byte* data) const { std::free(data); }

Operands::Operands(const MatrixLayout& a_layout, const MatrixLayout& b_layout,
                   const MatrixLayout& d_layout, int seed)
    : a(a_layout.batch_stride_bytes),
      b(b_layout.batch_stride_bytes),
      d(d_layout.batch_stride_bytes) {
  std::mt19937 random(static_cast<uint32_t>(seed + 1));
  Fill(a_layout, random, a.data());
  Fill(b_layout, random, b.data());
}

absl::StatusOr<Problem> MakeProblem(const Kernel& kernel, const Shape& shape, Order b_order) {
  Problem problem;
  problem.m = shape.m;
  problem.n = shape.n;
  problem.k = shape.k;
  problem.accumulation = kernel.recipe.accumulation;
  ASSIGN_OR_RETURN(problem.a, TightLayout("a", kernel.a, Order::kRowMajor, shape.m, shape.k));
  ASSIGN_OR_RETURN(problem.b, TightLayout("b", kernel.b, b_order, shape.k, shape.n));
  ASSIGN_OR_RETURN(
      problem.d, TightLayout("d", kernel.recipe.accumulation, Order::kRowMajor, shape.m, shape.n));
  RETURN_IF_ERROR(Validate(problem));
  return problem;
}

std::string Verify(const Kernel& kernel, const Problem& problem, const Operands& operands) {
  if (!problem.has_output() || !problem.has_product()) return "ok";
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int64_t> any_row(0, problem.m - 1);
  std::uniform_int_distribution<int64_t> any_column(0, problem.n - 1);
  const double unit = kernel.recipe.accumulation == ElementType::kF32 ? 0x1p-24 : 0x1p-53;
  for (int i = 0; i < kChecked; ++i) {
    const int64_t row = any_row(random);
    const int64_t column = any_column(random);
    const Sum want = Reference(problem, operands, row, column);
    const double got = ValueAt(problem.d, operands.d.data(), row, column);
    const double bound = static_cast<double>(2 * problem.k + 4) * unit * want.magnitude;
    const bool is_right = kernel.recipe.exact
                              ? static_cast<int32_t>(got) == static_cast<int32_t>(want.integer)
                              : std::fabs(got - want.value) <= bound;
    if (!is_right) return Concat("wrong at row ", row, ", column ", column);
  }
  return "ok";
}

}  // namespace gemmd::bench
