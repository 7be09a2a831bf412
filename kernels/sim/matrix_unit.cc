// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/matrix_unit.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace gemmd::sim {
namespace {

using mma::Algorithm;

int64_t IntegerOf(ElementType type, uint64_t bits) {
  const int unused = 64 - BitsOf(type);
  const uint64_t shifted = bits << unused;
  return FactsOf(type).is_signed ? static_cast<int64_t>(shifted) >> unused
                                 : static_cast<int64_t>(shifted >> unused);
}

// Converts C to the format of the sums, and a sum to the format of D.
uint32_t SumFromC(ElementType c, ElementType sum, uint64_t bits) {
  const auto word = static_cast<uint32_t>(bits);
  return c == ElementType::kF16 && sum == ElementType::kF32 ? F32FromF16(word) : word;
}
uint32_t DFromSum(ElementType sum, ElementType d, uint32_t bits) {
  return sum == ElementType::kF32 && d == ElementType::kF16 ? F16FromF32(bits) : bits;
}

}  // namespace

MatrixUnit::MatrixUnit(const mma::Instruction& instruction, mma::Chip chip)
    : instruction_(instruction),
      arithmetic_(mma::ArithmeticOf(instruction, chip)),
      depth_(instruction.a_columns()),
      is_fused_(mma::IsFused(arithmetic_)),
      dense_k_(static_cast<size_t>(depth_)),
      places_(static_cast<size_t>(depth_)),
      products_(static_cast<size_t>(depth_)) {
  std::iota(dense_k_.begin(), dense_k_.end(), 0);
}

void MatrixUnit::Multiply(const OperandMatrices& operands, std::span<uint64_t> d) {
  const ScopedRounding rounding(instruction_.rounding);
  const auto a_size = static_cast<size_t>(instruction_.m * depth_);
  const auto b_size = static_cast<size_t>(instruction_.k * instruction_.n);
  const auto c_size = static_cast<size_t>(instruction_.m * instruction_.n);
  for (size_t i = 0; i < static_cast<size_t>(instruction_.products()); ++i) {
    const View view = {.a = operands.a.subspan(i * a_size, a_size),
                       .b = operands.b.subspan(i * b_size, b_size),
                       .c = operands.c.subspan(i * c_size, c_size),
                       .a_factors = operands.a_factors,
                       .b_factors = operands.b_factors};
    MultiplyOne(view, operands.a_k, d.subspan(i * c_size, c_size));
  }
}

void MatrixUnit::MultiplyOne(const View& view, std::span<const int> sparse_k,
                             std::span<uint64_t> d) {
  if (is_fused_) DecodeOperands(view);
  const auto depth = static_cast<size_t>(depth_);
  for (int row = 0; row < instruction_.m; ++row) {
    OrderProducts(sparse_k.empty() ? std::span<const int>(dense_k_)
                                   : sparse_k.subspan(static_cast<size_t>(row) * depth, depth));
    for (int column = 0; column < instruction_.n; ++column) {
      const auto at = static_cast<size_t>(row * instruction_.n + column);
      d[at] = Element(view, row, column, view.c[at]);
    }
  }
}

void MatrixUnit::OrderProducts(std::span<const int> a_k) {
  row_k_ = a_k;
  std::iota(places_.begin(), places_.end(), 0);
  if (arithmetic_.order == mma::BlockOrder::kAscending) return;
  std::stable_partition(places_.begin(), places_.end(), [&](int place) {
    return mma::BlockOf(arithmetic_, place, row_k_[static_cast<size_t>(place)]) == 0;
  });
}

void MatrixUnit::DecodeOperands(const View& view) {
  const auto decode = [&](ElementType type, uint64_t bits) {
    const auto word = static_cast<uint32_t>(bits);
    return arithmetic_.widens_to_f16 ? Decode(ElementType::kF16, F16FromFp8(type, word))
                                     : Decode(type, word);
  };
  a_numbers_.resize(view.a.size());
  b_numbers_.resize(view.b.size());
  for (size_t i = 0; i < view.a.size(); ++i) a_numbers_[i] = decode(instruction_.a, view.a[i]);
  const auto rows = static_cast<size_t>(instruction_.k);
  const auto columns = static_cast<size_t>(instruction_.n);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      b_numbers_[column * rows + row] = decode(instruction_.b, view.b[row * columns + column]);
    }
  }
}

uint64_t MatrixUnit::Element(const View& view, int row, int column, uint64_t c) {
  const uint32_t addend = SumFromC(instruction_.c, arithmetic_.sum, c);
  uint32_t sum = 0;
  switch (arithmetic_.algorithm) {
    case Algorithm::kFusedSums: sum = FusedChain(view, row, column, addend); break;
    case Algorithm::kFusedHalvesThenC: {
      const uint32_t halves = FusedChain(view, row, column, 0);
      sum = arithmetic_.sum == ElementType::kF16 ? AddF16(addend, halves) : AddF32(addend, halves);
      break;
    }
    case Algorithm::kScaledGroups: sum = ScaledGroups(view, row, column, addend); break;
    case Algorithm::kMultiplyAdds: sum = Fma(view, row, column, addend); break;
    case Algorithm::kMultiplyAddsF64: return FmaF64(view, row, column, c);
    case Algorithm::kIntegers:
    case Algorithm::kBitCounts:
      return AddInteger(ExactSum(view, row, column), addend, instruction_.saturates);
  }
  return DFromSum(arithmetic_.sum, instruction_.d, sum);
}

Factor MatrixUnit::FactorAt(std::span<const uint8_t> factors, int index) const {
  if (factors.empty()) return {};
  return DecodeFactor(instruction_.scale, factors[static_cast<size_t>(index)]);
}

uint32_t MatrixUnit::FusedChain(const View& view, int row, int column, uint32_t c) {
  const Number* a = &a_numbers_[static_cast<size_t>(row * depth_)];
  const Number* b = &b_numbers_[static_cast<size_t>(column * instruction_.k)];
  for (size_t i = 0; i < places_.size(); ++i) {
    const int place = places_[i];
    const int k = row_k_[static_cast<size_t>(place)];
    Product& product = products_[i];
    product.a = a[place];
    product.b = b[k];
    if (instruction_.scales == 0) continue;
    const int block = k / instruction_.scale_block();
    const Factor x = FactorAt(view.a_factors, row * instruction_.scales + block);
    const Factor y = FactorAt(view.b_factors, block * instruction_.n + column);
    product.exponent = x.exponent + y.exponent;
    product.has_nan_factor = x.is_nan || y.is_nan;
  }
  uint32_t sum = c;
  const auto block = static_cast<size_t>(arithmetic_.block);
  for (size_t first = 0; first < products_.size(); first += block) {
    sum = FusedSum(arithmetic_, std::span<const Product>(products_).subspan(first, block), sum);
  }
  return sum;
}

// Adds groups of 16 elements along k, the finest that factors are given for.
uint32_t MatrixUnit::ScaledGroups(const View& view, int row, int column, uint32_t c) {
  constexpr int kGroup = 16;
  constexpr int kMostGroups = 8;
  std::array<ScaledGroup, kMostGroups> groups = {};
  for (int place = 0; place < depth_; ++place) {
    const int k = row_k_[static_cast<size_t>(place)];
    const int block = k / instruction_.scale_block();
    const Factor x = FactorAt(view.a_factors, row * instruction_.scales + block);
    const Factor y = FactorAt(view.b_factors, block * instruction_.n + column);
    const Number a = Decode(
        instruction_.a, static_cast<uint32_t>(view.a[static_cast<size_t>(row * depth_ + place)]));
    const Number b =
        Decode(instruction_.b,
               static_cast<uint32_t>(view.b[static_cast<size_t>(k * instruction_.n + column)]));
    ScaledGroup& group = groups[static_cast<size_t>(k / (kGroup * instruction_.k / depth_))];
    group.is_nan = x.is_nan || y.is_nan;
    group.exponent = x.exponent + y.exponent;
    group.fraction_bits =
        2 * FactsOf(instruction_.a).format.fraction_bits + x.fraction_bits + y.fraction_bits;
    // Subnormals have the exponent 0 of the smallest normal, so exponents are never negative.
    const int64_t product =
        static_cast<int64_t>(uint64_t{a.significand} * b.significand * x.significand * y.significand
                             << (a.exponent + b.exponent));
    group.sum += a.negative != b.negative ? -product : product;
  }
  return SumOfGroups(arithmetic_, groups, c);
}

uint32_t MatrixUnit::Fma(const View& view, int row, int column, uint32_t c) const {
  std::array<uint32_t, 4> a;
  std::array<uint32_t, 4> b;
  for (int k = 0; k < 4; ++k) {
    const auto i = static_cast<size_t>(k);
    a[i] = static_cast<uint32_t>(view.a[static_cast<size_t>(row * depth_ + k)]);
    b[i] = static_cast<uint32_t>(view.b[static_cast<size_t>(k * instruction_.n + column)]);
  }
  return MultiplyAdds(arithmetic_.sum, a, b, c);
}

uint64_t MatrixUnit::FmaF64(const View& view, int row, int column, uint64_t c) const {
  for (int k = 0; k < depth_; ++k) {
    c = MultiplyAddF64(view.a[static_cast<size_t>(row * depth_ + k)],
                       view.b[static_cast<size_t>(k * instruction_.n + column)], c);
  }
  return c;
}

int64_t MatrixUnit::ExactSum(const View& view, int row, int column) const {
  int64_t sum = 0;
  for (int place = 0; place < depth_; ++place) {
    const int k = row_k_[static_cast<size_t>(place)];
    const uint64_t a = view.a[static_cast<size_t>(row * depth_ + place)];
    const uint64_t b = view.b[static_cast<size_t>(k * instruction_.n + column)];
    switch (instruction_.bit_count) {
      case mma::BitCount::kNone:
        sum += IntegerOf(instruction_.a, a) * IntegerOf(instruction_.b, b);
        break;
      case mma::BitCount::kAnd: sum += static_cast<int64_t>(a & b); break;
      case mma::BitCount::kXor: sum += static_cast<int64_t>(a ^ b); break;
    }
  }
  return sum;
}

}  // namespace gemmd::sim
