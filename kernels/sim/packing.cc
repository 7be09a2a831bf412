// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/packing.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/sim/number.h"
#include "kernels/sim/tiles.h"
#include "kernels/sim/unit.h"

namespace gemmd::sim {
namespace {

using mma::Operand;

// The format in which operands enter sums.
ElementType SummedType(const PackingPlan& plan, ElementType type) {
  return plan.arithmetic.widens_to_f16 ? ElementType::kF16 : type;
}

// The place of row `row` of B, counted from the chunk's start, in the panel of a column.
int64_t PanelPlace(int64_t column, int64_t rows_of_chunk, int64_t row) {
  return (column / kPanel * rows_of_chunk + row) * kPanel + column % kPanel;
}

Term MakeTerm(const PackingPlan& plan, ElementType type, uint32_t bits, int shift) {
  if (plan.arithmetic.widens_to_f16) bits = F16FromFp8(type, bits);
  const Number number = Decode(SummedType(plan, type), bits);
  switch (number.kind) {
    case NumberClass::kZero: return {0, kZeroExponent};
    case NumberClass::kFinite: break;
    case NumberClass::kInfinite:
    case NumberClass::kNan: return {0, kSpecialExponent};
  }
  const auto significand = static_cast<int32_t>(number.significand << shift);
  return {number.negative ? -significand : significand, number.exponent};
}

int16_t IntegerOf(ElementType type, uint32_t bits) {
  const int unused = 32 - BitsOf(type);
  const uint32_t shifted = bits << unused;
  return static_cast<int16_t>(FactsOf(type).is_signed ? static_cast<int32_t>(shifted) >> unused
                                                      : static_cast<int32_t>(shifted >> unused));
}

// An element in the half of a pair that its place along k selects.
uint32_t InPair(ElementType type, uint32_t bits, int64_t k) {
  return static_cast<uint32_t>(static_cast<uint16_t>(IntegerOf(type, bits))) << (16 * (k % 2));
}

size_t Size(int64_t a, int64_t b) { return static_cast<size_t>(a * b); }

}  // namespace

PackingPlan::PackingPlan(const mma::Instruction& of, mma::Chip chip)
    : instruction(of),
      arithmetic(mma::ArithmeticOf(of, chip)),
      a_map(of, Operand::kA),
      b_map(of, Operand::kB),
      d_map(of, Operand::kD),
      tile_rows(of.m * of.products()),
      depth(of.k),
      products(of.a_columns()) {
  if (!mma::IsFused(arithmetic)) return;
  // Shifted significands of A take 15 bits and those of B 12 at most; both fit 16 with their signs.
  constexpr int kMostFractionBits = 14;
  const int a_bits = FactsOf(SummedType(*this, of.a)).format.fraction_bits;
  const int b_bits = FactsOf(SummedType(*this, of.b)).format.fraction_bits;
  const int shift = arithmetic.fraction_bits - a_bits - b_bits;
  a_shift = std::min(kMostFractionBits - a_bits, shift);
  b_shift = shift - a_shift;
  if (arithmetic.order == mma::BlockOrder::kAscending || of.is_sparse()) return;
  dense_order.resize(static_cast<size_t>(products));
  std::iota(dense_order.begin(), dense_order.end(), 0);
  std::stable_partition(dense_order.begin(), dense_order.end(),
                        [&](int k) { return mma::BlockOf(arithmetic, k, k) == 0; });
}

template <typename Word>
TileReader<Word>::TileReader(const PackingPlan& plan, const Product2D& product)
    : plan_(plan),
      product_(product),
      a_tiles_(product),
      matrix_(std::max(plan.a_map.elements(), plan.b_map.elements())),
      registers_(std::max(plan.a_map.words(), plan.b_map.words())),
      metadata_(static_cast<size_t>(plan.instruction.lanes())),
      a_k_(plan.instruction.is_sparse() ? plan.a_map.elements() : 0) {}

template <typename Word>
const Word* TileReader<Word>::ReadA(int64_t row, int64_t k) {
  a_tiles_.Load(row, k, matrix_.data(), a_k_.data());
  plan_.a_map.Scatter(matrix_.data(), registers_);
  plan_.a_map.Gather(registers_, matrix_.data());
  if (plan_.instruction.is_sparse()) {
    EncodeMetadata(plan_.instruction, a_k_, 0, metadata_);
    DecodeMetadata(plan_.instruction, metadata_, 0, a_k_);
  }
  return matrix_.data();
}

template <typename Word>
const Word* TileReader<Word>::ReadB(int64_t k, int64_t column) {
  const mma::Instruction& instruction = plan_.instruction;
  const int64_t size = int64_t{instruction.k} * instruction.n;
  LoadTile(product_.problem.b, product_.b, {k, column, instruction.k, instruction.n},
           matrix_.data());
  for (int i = 1; i < instruction.products(); ++i) {
    std::copy_n(matrix_.data(), size, matrix_.data() + i * size);
  }
  plan_.b_map.Scatter(matrix_.data(), registers_);
  plan_.b_map.Gather(registers_, matrix_.data());
  return matrix_.data();
}

void FusedChunk::Resize(const PackingPlan& plan, const ChunkShape& shape) {
  const int64_t products = shape.instructions * plan.products;
  const int64_t depth = shape.instructions * plan.depth;
  a.resize(Size(shape.rows, products));
  a_bits.resize(a.size());
  b_significands.resize(Size(shape.columns, depth));
  b_exponents.resize(b_significands.size());
  b_bits.resize(b_significands.size());
  a_rows.clear();
  if (plan.instruction.is_sparse()) a_rows.resize(a.size());
  for (int64_t i = 0; i < shape.instructions; ++i) {
    for (const int k : plan.dense_order) {
      a_rows.push_back(static_cast<int32_t>(i * plan.depth + k));
    }
  }
}

void FusedChunk::PackA(const PackingPlan& plan, const ChunkShape& shape, int64_t row,
                       TileReader<uint32_t>& reader) {
  const bool is_sparse = plan.instruction.is_sparse();
  const int64_t line = shape.instructions * plan.products;
  std::vector<int> order(static_cast<size_t>(plan.products));
  for (int64_t i = 0; i < shape.instructions; ++i) {
    const uint32_t* tile = reader.ReadA(shape.first_row + row, shape.k + i * plan.depth);
    for (int64_t r = 0; r < plan.tile_rows; ++r) {
      const int* a_k = is_sparse ? reader.a_k() + r * plan.products : nullptr;
      std::iota(order.begin(), order.end(), 0);
      if (is_sparse && plan.arithmetic.order != mma::BlockOrder::kAscending) {
        std::stable_partition(order.begin(), order.end(), [&](int place) {
          return mma::BlockOf(plan.arithmetic, place, a_k[place]) == 0;
        });
      }
      const std::vector<int>& places = plan.dense_order.empty() ? order : plan.dense_order;
      auto at = static_cast<size_t>((row + r) * line + i * plan.products);
      for (const int place : places) {
        const uint32_t bits = tile[r * plan.products + place];
        a[at] = MakeTerm(plan, plan.instruction.a, bits, plan.a_shift);
        a_bits[at] = bits;
        if (is_sparse) a_rows[at] = static_cast<int32_t>(i * plan.depth + a_k[place]);
        ++at;
      }
    }
  }
}

void FusedChunk::PackB(const PackingPlan& plan, const ChunkShape& shape, int64_t column,
                       TileReader<uint32_t>& reader) {
  const int n = plan.instruction.n;
  const int64_t depth = shape.instructions * plan.depth;
  for (int64_t i = 0; i < shape.instructions; ++i) {
    const uint32_t* tile = reader.ReadB(shape.k + i * plan.depth, shape.first_column + column);
    for (int64_t k = 0; k < plan.depth; ++k) {
      for (int64_t j = 0; j < n; ++j) {
        const uint32_t bits = tile[k * n + j];
        const Term term = MakeTerm(plan, plan.instruction.b, bits, plan.b_shift);
        const auto at = static_cast<size_t>(PanelPlace(column + j, depth, i * plan.depth + k));
        b_significands[at] = term.significand;
        b_exponents[at] = term.exponent;
        b_bits[at] = bits;
      }
    }
  }
}

void IntegerChunk::Resize(const PackingPlan& plan, const ChunkShape& shape) {
  const int64_t pairs = shape.instructions * plan.depth / 2;
  a.resize(Size(shape.rows, pairs));
  b.resize(Size(shape.columns, pairs));
}

void IntegerChunk::PackA(const PackingPlan& plan, const ChunkShape& shape, int64_t row,
                         TileReader<uint32_t>& reader) {
  const bool is_sparse = plan.instruction.is_sparse();
  const int64_t pairs = shape.instructions * plan.depth / 2;
  for (int64_t i = 0; i < shape.instructions; ++i) {
    const uint32_t* tile = reader.ReadA(shape.first_row + row, shape.k + i * plan.depth);
    for (int64_t r = 0; r < plan.tile_rows; ++r) {
      int32_t* line = &a[static_cast<size_t>((row + r) * pairs + i * plan.depth / 2)];
      std::fill_n(line, plan.depth / 2, 0);
      for (int64_t p = 0; p < plan.products; ++p) {
        const int64_t place = r * plan.products + p;
        const int64_t k = is_sparse ? reader.a_k()[place] : p;
        const uint32_t half = InPair(plan.instruction.a, tile[place], k);
        line[k / 2] = static_cast<int32_t>(static_cast<uint32_t>(line[k / 2]) | half);
      }
    }
  }
}

void IntegerChunk::PackB(const PackingPlan& plan, const ChunkShape& shape, int64_t column,
                         TileReader<uint32_t>& reader) {
  const int n = plan.instruction.n;
  const int64_t pairs = shape.instructions * plan.depth / 2;
  for (int64_t i = 0; i < shape.instructions; ++i) {
    const uint32_t* tile = reader.ReadB(shape.k + i * plan.depth, shape.first_column + column);
    for (int64_t pair = 0; pair < plan.depth / 2; ++pair) {
      for (int64_t j = 0; j < n; ++j) {
        const uint32_t low = InPair(plan.instruction.b, tile[2 * pair * n + j], 0);
        const uint32_t high = InPair(plan.instruction.b, tile[(2 * pair + 1) * n + j], 1);
        b[static_cast<size_t>(PanelPlace(column + j, pairs, i * plan.depth / 2 + pair))] =
            static_cast<int32_t>(low | high);
      }
    }
  }
}

void BitChunk::Resize(const PackingPlan& plan, const ChunkShape& shape) {
  const int64_t words = shape.instructions * plan.depth / 64;
  a.assign(Size(shape.rows, words), 0);
  b.assign(Size(shape.columns, words), 0);
}

void BitChunk::PackA(const PackingPlan& plan, const ChunkShape& shape, int64_t row,
                     TileReader<uint32_t>& reader) {
  const int64_t words = shape.instructions * plan.depth / 64;
  for (int64_t i = 0; i < shape.instructions; ++i) {
    const uint32_t* tile = reader.ReadA(shape.first_row + row, shape.k + i * plan.depth);
    for (int64_t r = 0; r < plan.tile_rows; ++r) {
      uint64_t* line = &a[static_cast<size_t>((row + r) * words + i * plan.depth / 64)];
      for (int64_t k = 0; k < plan.depth; ++k) {
        line[k / 64] |= uint64_t{tile[r * plan.depth + k]} << (k % 64);
      }
    }
  }
}

void BitChunk::PackB(const PackingPlan& plan, const ChunkShape& shape, int64_t column,
                     TileReader<uint32_t>& reader) {
  const int n = plan.instruction.n;
  const int64_t words = shape.instructions * plan.depth / 64;
  for (int64_t i = 0; i < shape.instructions; ++i) {
    const uint32_t* tile = reader.ReadB(shape.k + i * plan.depth, shape.first_column + column);
    for (int64_t j = 0; j < n; ++j) {
      uint64_t* line = &b[static_cast<size_t>((column + j) * words + i * plan.depth / 64)];
      for (int64_t k = 0; k < plan.depth; ++k) {
        line[k / 64] |= uint64_t{tile[k * n + j]} << (k % 64);
      }
    }
  }
}

template <typename Float>
void FloatChunk<Float>::Resize(const PackingPlan& plan, const ChunkShape& shape) {
  const int64_t depth = shape.instructions * plan.depth;
  a.resize(Size(shape.rows, depth));
  b.resize(Size(shape.columns, depth));
}

namespace {

double FloatOf(uint64_t bits) { return std::bit_cast<double>(bits); }
float FloatOf(uint32_t bits) { return std::bit_cast<float>(F32FromF16(bits)); }

}  // namespace

template <typename Float>
void FloatChunk<Float>::PackA(const PackingPlan& plan, const ChunkShape& shape, int64_t row,
                              TileReader<Word>& reader) {
  const int64_t depth = shape.instructions * plan.depth;
  for (int64_t i = 0; i < shape.instructions; ++i) {
    const Word* tile = reader.ReadA(shape.first_row + row, shape.k + i * plan.depth);
    for (int64_t r = 0; r < plan.tile_rows; ++r) {
      for (int64_t k = 0; k < plan.depth; ++k) {
        a[static_cast<size_t>((row + r) * depth + i * plan.depth + k)] =
            FloatOf(tile[r * plan.depth + k]);
      }
    }
  }
}

template <typename Float>
void FloatChunk<Float>::PackB(const PackingPlan& plan, const ChunkShape& shape, int64_t column,
                              TileReader<Word>& reader) {
  const int n = plan.instruction.n;
  const int64_t depth = shape.instructions * plan.depth;
  for (int64_t i = 0; i < shape.instructions; ++i) {
    const Word* tile = reader.ReadB(shape.k + i * plan.depth, shape.first_column + column);
    for (int64_t k = 0; k < plan.depth; ++k) {
      for (int64_t j = 0; j < n; ++j) {
        b[static_cast<size_t>(PanelPlace(column + j, depth, i * plan.depth + k))] =
            FloatOf(tile[k * n + j]);
      }
    }
  }
}

template class TileReader<uint32_t>;
template class TileReader<uint64_t>;
template struct FloatChunk<float>;
template struct FloatChunk<double>;

}  // namespace gemmd::sim
