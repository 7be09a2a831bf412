// SPDX-License-Identifier: Apache-2.0
#include "kernels/verify/line_sums.h"

#include "kernels/element.h"

namespace gemmd::verify {
namespace {

// Calls `take(line, values)` with the elements of each line as f64, until the flag is set.
template <typename Take>
void ForEachLine(const MatrixLayout& layout, const std::byte* matrix, AbortFlag abort, Take take) {
  const int64_t length = layout.line_length();
  std::vector<double> values(static_cast<size_t>(length));
  for (int64_t line = 0; line < layout.lines() && !IsSet(abort); ++line) {
    DecodeLine(layout.type, matrix + line * layout.line_stride_bytes(), length, values.data());
    take(static_cast<size_t>(line), values);
  }
}

uint64_t FieldOf(int64_t value) {
  return value >= 0 ? static_cast<uint64_t>(value) % kFieldPrime
                    : kFieldPrime - static_cast<uint64_t>(-value) % kFieldPrime;
}

uint64_t FieldProduct(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  const uint64_t sum =
      static_cast<uint64_t>(product & kFieldPrime) + static_cast<uint64_t>(product >> 61);
  return sum >= kFieldPrime ? sum - kFieldPrime : sum;
}

void AddTerm(double value, const IntegerFactor& factor, IntegerFactor& sum) {
  const auto integer = static_cast<int64_t>(value);
  sum.word += static_cast<uint32_t>(integer) * factor.word;
  const uint64_t field = sum.field + FieldProduct(FieldOf(integer) % kFieldPrime, factor.field);
  sum.field = field >= kFieldPrime ? field - kFieldPrime : field;
}

}  // namespace

LineSums SumsOf(const MatrixLayout& layout, const std::byte* matrix,
                const std::vector<double>& factors, const std::vector<double>& weights,
                AbortFlag abort) {
  LineSums result;
  result.sums.resize(static_cast<size_t>(layout.rows));
  result.squares.resize(static_cast<size_t>(layout.rows));
  const bool is_row_major = layout.order == Order::kRowMajor;
  ForEachLine(layout, matrix, abort, [&](size_t line, const std::vector<double>& values) {
    if (is_row_major) {
      double sum = 0;
      double squares = 0;
      for (size_t j = 0; j < values.size(); ++j) {
        sum += values[j] * factors[j];
        squares += values[j] * values[j] * weights[j];
      }
      result.sums[line] = sum;
      result.squares[line] = squares;
    } else {
      const double factor = factors[line];
      const double weight = weights[line];
      for (size_t i = 0; i < values.size(); ++i) {
        result.sums[i] += values[i] * factor;
        result.squares[i] += values[i] * values[i] * weight;
      }
    }
  });
  return result;
}

std::vector<double> SquaresOf(const std::vector<double>& values) {
  std::vector<double> squares;
  squares.reserve(values.size());
  for (const double value : values) squares.push_back(value * value);
  return squares;
}

std::vector<IntegerFactor> IntegerSums(const MatrixLayout& layout, const std::byte* matrix,
                                       const std::vector<IntegerFactor>& factors, AbortFlag abort) {
  std::vector<IntegerFactor> sums(static_cast<size_t>(layout.rows));
  const bool is_row_major = layout.order == Order::kRowMajor;
  ForEachLine(layout, matrix, abort, [&](size_t line, const std::vector<double>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (is_row_major) {
        AddTerm(values[i], factors[i], sums[line]);
      } else {
        AddTerm(values[i], factors[line], sums[i]);
      }
    }
  });
  return sums;
}

double MagnitudeOf(ElementType type) {
  const ElementFacts facts = FactsOf(type);
  return facts.is_signed ? static_cast<double>(int64_t{1} << (facts.bits - 1))
                         : static_cast<double>((int64_t{1} << facts.bits) - 1);
}

}  // namespace gemmd::verify
