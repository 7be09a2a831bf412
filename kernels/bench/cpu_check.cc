// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/cpu_check.h"

#include <cmath>
#include <random>

#include "kernels/text.h"

namespace gemmd::bench {
namespace {

constexpr int kChecked = 1000;

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

Sum Reference(const Problem& problem, const ProductBytes& bytes, int64_t row, int64_t column) {
  Sum sum;
  for (int64_t p = 0; p < problem.k; ++p) {
    const double a = ValueAt(problem.a, bytes.a, row, p);
    const double b = ValueAt(problem.b, bytes.b, p, column);
    sum.value += a * b;
    sum.magnitude += std::fabs(a * b);
    if (IsInteger(problem.a.type)) sum.integer += static_cast<int64_t>(a) * static_cast<int64_t>(b);
  }
  return sum;
}

}  // namespace

std::string CheckElements(const Kernel& kernel, const Problem& problem, const ProductBytes& bytes) {
  if (!problem.has_output() || !problem.has_product()) return "ok";
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int64_t> any_row(0, problem.m - 1);
  std::uniform_int_distribution<int64_t> any_column(0, problem.n - 1);
  const double unit = kernel.recipe.accumulation == ElementType::kF32 ? 0x1p-24 : 0x1p-53;
  for (int i = 0; i < kChecked; ++i) {
    const int64_t row = any_row(random);
    const int64_t column = any_column(random);
    const Sum want = Reference(problem, bytes, row, column);
    const double got = ValueAt(problem.d, bytes.d, row, column);
    const double bound = static_cast<double>(2 * problem.k + 4) * unit * want.magnitude;
    const bool is_right = kernel.recipe.exact
                              ? static_cast<int32_t>(got) == static_cast<int32_t>(want.integer)
                              : std::fabs(got - want.value) <= bound;
    if (!is_right) return Concat("wrong at row ", row, ", column ", column);
  }
  return "ok";
}

}  // namespace gemmd::bench
