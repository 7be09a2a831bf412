// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/unit.h"

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
    const OperandMatrices view = {.a = operands.a.subspan(i * a_size, a_size),
                                  .a_k = operands.a_k,
                                  .b = operands.b.subspan(i * b_size, b_size),
                                  .c = operands.c.subspan(i * c_size, c_size),
                                  .a_factors = operands.a_factors,
                                  .b_factors = operands.b_factors};
    MultiplyOne(view, d.subspan(i * c_size, c_size));
  }
}

void MatrixUnit::MultiplyOne(const OperandMatrices& view, std::span<uint64_t> d) {
  if (is_fused_) DecodeOperands(view);
  const auto depth = static_cast<size_t>(depth_);
  for (int row = 0; row < instruction_.m; ++row) {
    OrderProducts(view.a_k.empty() ? std::span<const int>(dense_k_)
                                   : view.a_k.subspan(static_cast<size_t>(row) * depth, depth));
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

void MatrixUnit::DecodeOperands(const OperandMatrices& view) {
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

uint64_t MatrixUnit::Element(const OperandMatrices& view, int row, int column, uint64_t c) {
  const auto addend = static_cast<uint32_t>(ConvertSum(instruction_.c, arithmetic_.sum, c));
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
  return ConvertSum(arithmetic_.sum, instruction_.d, sum);
}

Factor MatrixUnit::FactorAt(std::span<const uint8_t> factors, int index) const {
  if (factors.empty()) return {};
  return DecodeFactor(instruction_.scale, factors[static_cast<size_t>(index)]);
}

uint32_t MatrixUnit::FusedChain(const OperandMatrices& view, int row, int column, uint32_t c) {
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

// Adds groups of 16 elements along k, the finest granularity of factors.
uint32_t MatrixUnit::ScaledGroups(const OperandMatrices& view, int row, int column, uint32_t c) {
  constexpr int kGroup = 16;
  constexpr int kMaxGroups = 8;
  std::array<ScaledGroup, kMaxGroups> groups = {};
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

uint32_t MatrixUnit::Fma(const OperandMatrices& view, int row, int column, uint32_t c) const {
  std::array<uint32_t, 4> a;
  std::array<uint32_t, 4> b;
  for (int k = 0; k < 4; ++k) {
    const auto i = static_cast<size_t>(k);
    a[i] = static_cast<uint32_t>(view.a[static_cast<size_t>(row * depth_ + k)]);
    b[i] = static_cast<uint32_t>(view.b[static_cast<size_t>(k * instruction_.n + column)]);
  }
  return MultiplyAdds(arithmetic_.sum, a, b, c);
}

uint64_t MatrixUnit::FmaF64(const OperandMatrices& view, int row, int column, uint64_t c) const {
  for (int k = 0; k < depth_; ++k) {
    c = MultiplyAddF64(view.a[static_cast<size_t>(row * depth_ + k)],
                       view.b[static_cast<size_t>(k * instruction_.n + column)], c);
  }
  return c;
}

int64_t MatrixUnit::ExactSum(const OperandMatrices& view, int row, int column) const {
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

OperandMap::OperandMap(const mma::Instruction& instruction, mma::Operand operand)
    : is_wide_(BitsOf(mma::TypeOf(instruction, operand)) == 64) {
  const int bits = BitsOf(mma::TypeOf(instruction, operand));
  mask_ = bits >= 32 ? ~0u : (1u << bits) - 1;
  if (instruction.is_warpgroup() && operand == mma::Operand::kB) {
    MapSharedMemory(instruction);
  } else {
    MapFragment(instruction, operand);
  }
}

void OperandMap::MapFragment(const mma::Instruction& instruction, mma::Operand operand) {
  constexpr Slot kUnset = {~0u, 0};
  const int rows = mma::RowsOf(instruction, operand);
  const int columns = mma::ColumnsOf(instruction, operand);
  const int bits = mma::ContainerBits(instruction, operand);
  const int words_per_lane = mma::WordsPerLane(instruction, operand);
  words_ = static_cast<size_t>(words_per_lane * instruction.lanes());
  slots_.assign(static_cast<size_t>(rows * columns * instruction.products()), kUnset);
  for (int lane = 0; lane < instruction.lanes(); ++lane) {
    for (int i = 0; i < mma::ElementsPerLane(instruction, operand); ++i) {
      const mma::Position position = mma::PositionOf(instruction, operand, lane, i);
      const auto element =
          static_cast<size_t>((position.product * rows + position.row) * columns + position.column);
      const int first_bit = i * bits + mma::ContainerShift(instruction, operand);
      const Slot slot = {static_cast<uint32_t>(lane * words_per_lane + first_bit / 32),
                         static_cast<uint32_t>(first_bit % 32)};
      if (slots_[element].word == kUnset.word) {
        slots_[element] = slot;
      } else {
        copies_.push_back({element, slot});
      }
    }
  }
}

void OperandMap::MapSharedMemory(const mma::Instruction& instruction) {
  const int bits = BitsOf(instruction.b);
  words_ = static_cast<size_t>(instruction.k * instruction.n * bits / 32);
  slots_.reserve(static_cast<size_t>(instruction.k * instruction.n));
  for (int row = 0; row < instruction.k; ++row) {
    for (int column = 0; column < instruction.n; ++column) {
      const int first_bit = (column * instruction.k + row) * bits;
      slots_.push_back(
          {static_cast<uint32_t>(first_bit / 32), static_cast<uint32_t>(first_bit % 32)});
    }
  }
}

template <typename Word>
void OperandMap::Scatter(const Word* matrix, std::span<uint32_t> registers) const {
  if constexpr (sizeof(Word) == 8) {
    if (is_wide_) {
      for (size_t i = 0; i < slots_.size(); ++i) {
        registers[slots_[i].word] = static_cast<uint32_t>(matrix[i]);
        registers[slots_[i].word + 1] = static_cast<uint32_t>(matrix[i] >> 32);
      }
      return;
    }
  }
  std::fill_n(registers.begin(), words_, 0);
  for (size_t i = 0; i < slots_.size(); ++i) {
    registers[slots_[i].word] |= (static_cast<uint32_t>(matrix[i]) & mask_) << slots_[i].shift;
  }
  for (const auto& [element, slot] : copies_) {
    registers[slot.word] |= (static_cast<uint32_t>(matrix[element]) & mask_) << slot.shift;
  }
}

template <typename Word>
void OperandMap::Gather(std::span<const uint32_t> registers, Word* matrix) const {
  if constexpr (sizeof(Word) == 8) {
    if (is_wide_) {
      for (size_t i = 0; i < slots_.size(); ++i) {
        matrix[i] = registers[slots_[i].word] | uint64_t{registers[slots_[i].word + 1]} << 32;
      }
      return;
    }
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    matrix[i] = registers[slots_[i].word] >> slots_[i].shift & mask_;
  }
}

template void OperandMap::Scatter(const uint32_t*, std::span<uint32_t>) const;
template void OperandMap::Scatter(const uint64_t*, std::span<uint32_t>) const;
template void OperandMap::Gather(std::span<const uint32_t>, uint32_t*) const;
template void OperandMap::Gather(std::span<const uint32_t>, uint64_t*) const;

namespace {

using mma::Operand;

void Gather(const OperandMap& map, std::span<const uint32_t> registers,
            std::vector<uint64_t>& matrix) {
  matrix.resize(map.elements());
  map.Gather(registers, matrix.data());
}

}  // namespace

void DecodeMetadata(const mma::Instruction& instruction, std::span<const uint32_t> metadata,
                    int selector, std::span<int> a_k) {
  const mma::Sparsity sparsity = mma::SparsityOf(instruction);
  const int group_size = mma::GroupSize(sparsity);
  const int kept = group_size / 2;
  auto next = a_k.begin();
  for (int row = 0; row < instruction.m; ++row) {
    for (int group = 0; group < mma::MetadataGroups(instruction); ++group) {
      const mma::MetadataField field = mma::MetadataFieldOf(instruction, selector, row, group);
      const uint32_t nibble = metadata[static_cast<size_t>(field.lane)] >> field.first_bit & 15;
      for (int i = 0; i < kept; ++i) {
        *next++ = group * group_size + mma::KeptElement(sparsity, nibble, i);
      }
    }
  }
}

void EncodeMetadata(const mma::Instruction& instruction, std::span<const int> a_k, int selector,
                    std::span<uint32_t> metadata) {
  const mma::Sparsity sparsity = mma::SparsityOf(instruction);
  const int group_size = mma::GroupSize(sparsity);
  const int kept = group_size / 2;
  std::fill(metadata.begin(), metadata.end(), 0);
  auto next = a_k.begin();
  for (int row = 0; row < instruction.m; ++row) {
    for (int group = 0; group < mma::MetadataGroups(instruction); ++group, next += kept) {
      const mma::MetadataField field = mma::MetadataFieldOf(instruction, selector, row, group);
      const uint32_t nibble = mma::NibbleOf(sparsity, *next - group * group_size,
                                            *(next + kept - 1) - group * group_size);
      metadata[static_cast<size_t>(field.lane)] |= nibble << field.first_bit;
    }
  }
}

Unit::Unit(const mma::Instruction& instruction, mma::Chip chip)
    : matrix_unit_(instruction, chip),
      a_map_(instruction, Operand::kA),
      b_map_(instruction, Operand::kB),
      c_map_(instruction, Operand::kC),
      d_map_(instruction, Operand::kD) {}

void Unit::Execute(const OperandRegisters& operands, std::span<uint32_t> d) {
  Gather(a_map_, operands.a, a_);
  Gather(b_map_, operands.b, b_);
  Gather(c_map_, operands.c, c_);
  if (instruction().is_sparse()) {
    a_k_.resize(a_.size());
    DecodeMetadata(instruction(), operands.metadata, operands.selector, a_k_);
  }
  d_.resize(d_map_.elements());
  matrix_unit_.Multiply({.a = a_,
                         .a_k = a_k_,
                         .b = b_,
                         .c = c_,
                         .a_factors = operands.a_factors,
                         .b_factors = operands.b_factors},
                        d_);
  d_map_.Scatter(d_.data(), d);
}

}  // namespace gemmd::sim
