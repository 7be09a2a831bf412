// SPDX-License-Identifier: Apache-2.0
#include "kernels/verify/part_sums.h"

#include <cstdint>

namespace gemmd::verify {
namespace {

double FactorAt(const FactorLine& line, int64_t k) {
  if (line.blocks == nullptr) return 1;
  const FactorType type = line.blocks->type;
  return DecodeFactor(type, line.factors + k / line.blocks->depth * BytesOf(type));
}

}  // namespace

float SumOfParts(absl::Span<const double> a, absl::Span<const double> b, const FactorLine& of_a,
                 const FactorLine& of_b) {
  const auto k = static_cast<int64_t>(a.size());
  float total = 0;
  for (int64_t first = 0; first < k;) {
    const int64_t end = EndOfPart(of_a.blocks, of_b.blocks, first, k);
    float sum = 0;
    for (int64_t p = first; p < end; ++p) {
      const auto at = static_cast<size_t>(p);
      const auto product = static_cast<float>(a[at] * b[at]);
      sum = sum + product;
    }
    const double factor = FactorAt(of_a, first) * FactorAt(of_b, first);
    const auto scaled = static_cast<float>(sum * factor);
    total = total + scaled;
    first = end;
  }
  return total;
}

}  // namespace gemmd::verify
