// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/dot_products.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gemmd {
namespace {

// Below the normal range of f32, where a library may count an operand as zero.
bool IsTiny(double value) { return value != 0 && std::fabs(value) < 0x1p-126; }

// Whether products with this factor need no second look.
bool IsPlain(double value) {
  return std::isfinite(value) && !IsTiny(value) && std::fabs(value) < 0x1p500;
}

void AddAny(double a, double b, DotProduct& dot) {
  const double product = a * b;
  const bool has_tiny = IsTiny(a) || IsTiny(b);
  if (std::isfinite(product)) {
    dot.sum += product;
    dot.magnitude += std::fabs(product);
    if (has_tiny) dot.flushable += std::fabs(product);
    return;
  }
  dot.non_finite += product;
  // An overflow, or infinity times what may count as zero: not the same on every machine.
  if (has_tiny || (std::isfinite(a) && std::isfinite(b))) {
    dot.magnitude = std::numeric_limits<double>::infinity();
  }
}

void AddBits(v1::BitOperation operation, double a, double b, DotProduct& dot) {
  dot.sum += operation == v1::BIT_OPERATION_XOR ? a + b - 2 * a * b : a * b;
}

}  // namespace

std::vector<DotProduct> DotProducts(const DotProductInput& input, int64_t batch,
                                    const std::vector<int64_t>& rows) {
  const size_t n = static_cast<size_t>(input.n);
  std::vector<DotProduct> dots(rows.size() * n);
  std::vector<double> b(n);
  for (int64_t k = 0; k < input.k; ++k) {
    for (size_t j = 0; j < n; ++j) {
      const auto column = static_cast<int64_t>(j);
      b[j] = input.b.At(batch, k, column) * input.b_factors.At(batch, column, k);
    }
    const bool is_b_plain = std::all_of(b.begin(), b.end(), IsPlain);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double a = input.a.At(batch, rows[i], k) * input.a_factors.At(batch, rows[i], k);
      DotProduct* const line = dots.data() + i * n;
      if (input.is_bits) {
        for (size_t j = 0; j < n; ++j) AddBits(input.bit_operation, a, b[j], line[j]);
      } else if (is_b_plain && IsPlain(a)) {
        for (size_t j = 0; j < n; ++j) {
          const double product = a * b[j];
          line[j].sum += product;
          line[j].magnitude += std::fabs(product);
        }
      } else {
        for (size_t j = 0; j < n; ++j) AddAny(a, b[j], line[j]);
      }
    }
  }
  return dots;
}

}  // namespace gemmd
