// SPDX-License-Identifier: Apache-2.0
//
// Packs operands for the vector code. Every element passes through the registers of its lane, so
// that a wrong fragment table gives a wrong product. A chunk is a range of k of whole instructions.
// Lines are rows of A and columns of B, in whole tiles of an instruction; B is stored in panels of
// kPanel columns.
#include "kernels/sim/vector_product.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <numeric>
#include <type_traits>
#include <vector>

#include "kernels/mma/arithmetic.h"
#include "kernels/sim/parallel.h"
#include "kernels/sim/product.h"
#include "kernels/sim/scalar.h"
#include "kernels/sim/tiles.h"
#include "kernels/sim/unit.h"
#include "kernels/sim/vector/runs.h"

namespace gemmd::sim {
namespace {

// Constants that follow from the instruction and the chip.
struct PackingPlan {
  PackingPlan(const mma::Instruction& instruction, mma::Chip chip);

  const mma::Instruction instruction;
  const mma::Arithmetic arithmetic;
  const OperandMap a_map;
  const OperandMap b_map;
  const OperandMap d_map;
  const int tile_rows;  // m of all products of one instruction.
  const int depth;      // k of one instruction.
  const int products;   // Elements of A along k per instruction.
  // Left shifts that give the products of fused sums their fraction bits.
  int a_shift = 0;
  int b_shift = 0;
  std::vector<int> order;     // The places of dense products in the order of the blocks.
  bool is_reordered = false;  // Whether that is another one than that of k.
};

// Reads tiles through the registers: raw bits, row major.
template <typename Word>
class TileReader {
 public:
  TileReader(const PackingPlan& plan, const Product2D& product);

  // A tile of A, tile_rows x products; both it and a_k are valid until the next call.
  const Word* ReadA(int64_t row, int64_t k);
  // The place along k of each element of a sparse A, counted from the tile's start.
  const int* a_k() const { return a_k_.data(); }

  // A tile of B, depth x instruction.n.
  const Word* ReadB(int64_t k, int64_t column);

 private:
  const PackingPlan& plan_;
  const Product2D& product_;
  const ATiles a_tiles_;
  std::vector<Word> matrix_;
  std::vector<uint32_t> registers_;
  std::vector<uint32_t> metadata_;
  std::vector<int> a_k_;
};

// The shape of a chunk: `instructions` from `k` on, `rows` rows of A and `columns` columns of B.
struct ChunkShape {
  int64_t k;  // Start of the chunk.
  int64_t instructions;
  int64_t first_row;
  int64_t rows;
  int64_t first_column;
  int64_t columns;
};

using mma::Operand;

// The format of operands in sums.
ElementType SummedType(const PackingPlan& plan, ElementType type) {
  return plan.arithmetic.widens_to_f16 ? ElementType::kF16 : type;
}

// The index of B's row `row` (from the chunk's start) in the panel of a column.
size_t PanelPlace(int64_t column, int64_t rows_of_chunk, int64_t row) {
  return static_cast<size_t>((column / kPanel * rows_of_chunk + row) * kPanel + column % kPanel);
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
  constexpr int kMaxFractionBits = 14;
  const int a_bits = FactsOf(SummedType(*this, of.a)).format.fraction_bits;
  const int b_bits = FactsOf(SummedType(*this, of.b)).format.fraction_bits;
  const int shift = arithmetic.fraction_bits - a_bits - b_bits;
  a_shift = std::min(kMaxFractionBits - a_bits, shift);
  b_shift = shift - a_shift;
  order.resize(static_cast<size_t>(products));
  std::iota(order.begin(), order.end(), 0);
  is_reordered = arithmetic.order != mma::BlockOrder::kAscending && !of.is_sparse();
  if (!is_reordered) return;
  std::stable_partition(order.begin(), order.end(),
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

// The operand forms of the vector code: a chunk of packed operands, into which tiles are put as
// they are read, one instruction's at a time; storage of sums; depth of chunks; and the work on a
// region of the result. `row` and `column` are counted from the chunk's first ones. `a_k`: see
// TileReader.

// Elements along k that are packed at once: with 16 columns of 8 bytes each they fill half of a 64
// KiB first-level cache. Bits need so little space that deeper chunks cost nothing.
constexpr int64_t kChunkDepth = 256;
constexpr int64_t kBitChunkDepth = 4096;
// The work of one task: rows times one panel.
struct Region {
  int64_t row;  // Counted from the chunk's first row.
  int64_t rows;
  int64_t panel;
};

// Fused sums.
struct FusedForm {
  using Word = uint32_t;
  using Sum = uint32_t;
  static constexpr int64_t kDepth = kChunkDepth;

  std::vector<Term> a;  // rows x products.
  std::vector<uint32_t> a_bits;
  // The row of B for each element of A: rows x products if A is sparse, one line for all rows if
  // the plan is reordered, otherwise nothing.
  std::vector<int32_t> a_rows;
  std::vector<int32_t> b_significands;  // Panels x depth x kPanel.
  std::vector<int32_t> b_exponents;
  std::vector<uint32_t> b_bits;

  void Resize(const PackingPlan& plan, const ChunkShape& shape) {
    a.resize(Size(shape.rows, shape.instructions * plan.products));
    a_bits.resize(a.size());
    b_significands.resize(Size(shape.columns, shape.instructions * plan.depth));
    b_exponents.resize(b_significands.size());
    b_bits.resize(b_significands.size());
    a_rows.clear();
    if (plan.instruction.is_sparse()) a_rows.resize(a.size());
    for (int64_t i = 0; plan.is_reordered && i < shape.instructions; ++i) {
      for (const int k : plan.order) a_rows.push_back(static_cast<int32_t>(i * plan.depth + k));
    }
  }

  void PackA(const PackingPlan& plan, const ChunkShape& shape, int64_t row, int64_t instruction,
             const Word* tile, const int* a_k) {
    const bool is_sparse = plan.instruction.is_sparse();
    const bool is_sorted = is_sparse && plan.arithmetic.order != mma::BlockOrder::kAscending;
    std::vector<int> sorted;
    for (int64_t r = 0; r < plan.tile_rows; ++r) {
      const int* const row_k = is_sparse ? a_k + r * plan.products : nullptr;
      if (is_sorted) {
        sorted = plan.order;
        std::stable_partition(sorted.begin(), sorted.end(), [&](int place) {
          return mma::BlockOf(plan.arithmetic, place, row_k[place]) == 0;
        });
      }
      auto at = static_cast<size_t>(((row + r) * shape.instructions + instruction) * plan.products);
      for (const int place : is_sorted ? sorted : plan.order) {
        const uint32_t bits = tile[r * plan.products + place];
        a[at] = MakeTerm(plan, plan.instruction.a, bits, plan.a_shift);
        a_bits[at] = bits;
        if (is_sparse) a_rows[at] = static_cast<int32_t>(instruction * plan.depth + row_k[place]);
        ++at;
      }
    }
  }

  void PackB(const PackingPlan& plan, const ChunkShape& shape, int64_t column, int64_t instruction,
             const Word* tile) {
    for (int64_t k = 0; k < plan.depth; ++k) {
      for (int64_t j = 0; j < plan.instruction.n; ++j) {
        const uint32_t bits = *tile++;
        const Term term = MakeTerm(plan, plan.instruction.b, bits, plan.b_shift);
        const size_t at =
            PanelPlace(column + j, shape.instructions * plan.depth, instruction * plan.depth + k);
        b_significands[at] = term.significand;
        b_exponents[at] = term.exponent;
        b_bits[at] = bits;
      }
    }
  }

  void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
           const Region& region, Sum* sums, int64_t stride) const {
    const int64_t products = shape.instructions * plan.products;
    const int64_t panel = region.panel * shape.instructions * plan.depth * kPanel;
    for (int64_t row = region.row; row < region.row + region.rows; ++row) {
      const int32_t* rows = nullptr;
      if (!a_rows.empty()) {
        rows = a_rows.data() + (plan.instruction.is_sparse() ? row * products : 0);
      }
      code.fused({.instruction = &plan.instruction,
                  .arithmetic = &plan.arithmetic,
                  .products = plan.products,
                  .depth = plan.depth,
                  .instructions = static_cast<int>(shape.instructions),
                  .a = &a[static_cast<size_t>(row * products)],
                  .a_bits = &a_bits[static_cast<size_t>(row * products)],
                  .a_rows = rows,
                  .significands = &b_significands[static_cast<size_t>(panel)],
                  .exponents = &b_exponents[static_cast<size_t>(panel)],
                  .b_bits = &b_bits[static_cast<size_t>(panel)],
                  .sums = sums + row * stride + region.panel * kPanel});
    }
  }
};

// Integers: pairs along k of 16-bit elements. A sparse A is expanded.
struct IntegerForm {
  using Word = uint32_t;
  using Sum = uint32_t;
  static constexpr int64_t kDepth = 2 * kChunkDepth;

  std::vector<int32_t> a;  // rows x pairs.
  std::vector<int32_t> b;  // Panels x pairs x kPanel.

  void Resize(const PackingPlan& plan, const ChunkShape& shape) {
    const int64_t pairs = shape.instructions * plan.depth / 2;
    a.resize(Size(shape.rows, pairs));
    b.resize(Size(shape.columns, pairs));
  }

  void PackA(const PackingPlan& plan, const ChunkShape& shape, int64_t row, int64_t instruction,
             const Word* tile, const int* a_k) {
    const int64_t pairs = plan.depth / 2;
    for (int64_t r = 0; r < plan.tile_rows; ++r) {
      int32_t* line =
          &a[static_cast<size_t>(((row + r) * shape.instructions + instruction) * pairs)];
      std::fill_n(line, pairs, 0);
      for (int64_t p = 0; p < plan.products; ++p) {
        const int64_t place = r * plan.products + p;
        const int64_t k = plan.instruction.is_sparse() ? a_k[place] : p;
        const uint32_t half = InPair(plan.instruction.a, tile[place], k);
        line[k / 2] = static_cast<int32_t>(static_cast<uint32_t>(line[k / 2]) | half);
      }
    }
  }

  void PackB(const PackingPlan& plan, const ChunkShape& shape, int64_t column, int64_t instruction,
             const Word* tile) {
    const int n = plan.instruction.n;
    const int64_t pairs = plan.depth / 2;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      for (int64_t j = 0; j < n; ++j) {
        const uint32_t low = InPair(plan.instruction.b, tile[2 * pair * n + j], 0);
        const uint32_t high = InPair(plan.instruction.b, tile[(2 * pair + 1) * n + j], 1);
        b[PanelPlace(column + j, shape.instructions * pairs, instruction * pairs + pair)] =
            static_cast<int32_t>(low | high);
      }
    }
  }

  void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
           const Region& region, Sum* sums, int64_t stride) const {
    const int64_t pairs = shape.instructions * plan.depth / 2;
    for (int64_t row = region.row; row < region.row + region.rows; row += kIntegerRows) {
      code.integers({.pairs_per_instruction = plan.depth / 2,
                     .instructions = static_cast<int>(shape.instructions),
                     .saturates = plan.instruction.saturates,
                     .a = &a[static_cast<size_t>(row * pairs)],
                     .a_stride = pairs,
                     .b = &b[static_cast<size_t>(region.panel * pairs * kPanel)],
                     .sums = sums + row * stride + region.panel * kPanel,
                     .sums_stride = stride});
    }
  }
};

// Bits: words of 64 along k.
struct BitForm {
  using Word = uint32_t;
  using Sum = uint32_t;
  static constexpr int64_t kDepth = kBitChunkDepth;

  std::vector<uint64_t> a;  // rows x words.
  std::vector<uint64_t> b;  // columns x words.

  void Resize(const PackingPlan& plan, const ChunkShape& shape) {
    const int64_t words = shape.instructions * plan.depth / 64;
    a.assign(Size(shape.rows, words), 0);
    b.assign(Size(shape.columns, words), 0);
  }

  // Sets the bits of one line and one instruction, `step` words of the tile apart.
  static void Pack(const PackingPlan& plan, const ChunkShape& shape, int64_t line,
                   int64_t instruction, const Word* tile, int64_t step,
                   std::vector<uint64_t>& into) {
    uint64_t* const words =
        &into[static_cast<size_t>((line * shape.instructions + instruction) * (plan.depth / 64))];
    for (int64_t k = 0; k < plan.depth; ++k) words[k / 64] |= uint64_t{tile[k * step]} << (k % 64);
  }

  void PackA(const PackingPlan& plan, const ChunkShape& shape, int64_t row, int64_t instruction,
             const Word* tile, const int* /*a_k*/) {
    for (int64_t r = 0; r < plan.tile_rows; ++r) {
      Pack(plan, shape, row + r, instruction, tile + r * plan.depth, 1, a);
    }
  }

  void PackB(const PackingPlan& plan, const ChunkShape& shape, int64_t column, int64_t instruction,
             const Word* tile) {
    const int n = plan.instruction.n;
    for (int64_t j = 0; j < n; ++j) Pack(plan, shape, column + j, instruction, tile + j, n, b);
  }

  void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
           const Region& region, Sum* sums, int64_t stride) const {
    const int64_t words = shape.instructions * plan.depth / 64;
    for (int64_t row = region.row; row < region.row + region.rows; ++row) {
      code.bits({.words = static_cast<int>(words),
                 .is_xor = plan.instruction.bit_count == mma::BitCount::kXor,
                 .a = &a[static_cast<size_t>(row * words)],
                 .b = &b[static_cast<size_t>(region.panel * kPanel * words)],
                 .sums = sums + row * stride + region.panel * kPanel});
    }
  }
};

double FloatOf(uint64_t bits) { return std::bit_cast<double>(bits); }
float FloatOf(uint32_t bits) { return std::bit_cast<float>(F32FromF16(bits)); }

// Multiply-adds: f64, or f16 as f32.
template <typename Float>
struct FloatForm {
  using Word = std::conditional_t<sizeof(Float) == 8, uint64_t, uint32_t>;
  using Sum = std::conditional_t<sizeof(Float) == 8, double, uint32_t>;
  static constexpr int64_t kDepth = kChunkDepth;

  std::vector<Float> a;  // rows x depth.
  std::vector<Float> b;  // Panels x depth x kPanel.

  void Resize(const PackingPlan& plan, const ChunkShape& shape) {
    a.resize(Size(shape.rows, shape.instructions * plan.depth));
    b.resize(Size(shape.columns, shape.instructions * plan.depth));
  }

  void PackA(const PackingPlan& plan, const ChunkShape& shape, int64_t row, int64_t instruction,
             const Word* tile, const int* /*a_k*/) {
    for (int64_t r = 0; r < plan.tile_rows; ++r) {
      Float* const line =
          &a[static_cast<size_t>(((row + r) * shape.instructions + instruction) * plan.depth)];
      for (int64_t k = 0; k < plan.depth; ++k) line[k] = FloatOf(*tile++);
    }
  }

  void PackB(const PackingPlan& plan, const ChunkShape& shape, int64_t column, int64_t instruction,
             const Word* tile) {
    for (int64_t k = 0; k < plan.depth; ++k) {
      for (int64_t j = 0; j < plan.instruction.n; ++j) {
        b[PanelPlace(column + j, shape.instructions * plan.depth, instruction * plan.depth + k)] =
            FloatOf(*tile++);
      }
    }
  }

  void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
           const Region& region, Sum* sums, int64_t stride) const {
    const int64_t depth = shape.instructions * plan.depth;
    const Float* const panel = &b[static_cast<size_t>(region.panel * depth * kPanel)];
    constexpr int kRows = sizeof(Float) == 8 ? kF64Rows : 1;
    for (int64_t row = region.row; row < region.row + region.rows; row += kRows) {
      const Float* const line = &a[static_cast<size_t>(row * depth)];
      Sum* const into = sums + row * stride + region.panel * kPanel;
      if constexpr (sizeof(Float) == 8) {
        code.f64({.rounding = plan.instruction.rounding,
                  .depth = static_cast<int>(depth),
                  .a = line,
                  .a_stride = depth,
                  .b = panel,
                  .sums = into,
                  .sums_stride = stride});
      } else {
        code.multiply_adds({.c = plan.instruction.c,
                            .d = plan.instruction.d,
                            .instructions = static_cast<int>(shape.instructions),
                            .a = line,
                            .b = panel,
                            .sums = into});
      }
    }
  }
};

// Lines of the result that are computed at once; this bounds the scratch memory to some 40 MiB.
constexpr int64_t kSuperLines = 2048;
constexpr int64_t kTaskRows = 64;  // A multiple of every tile's rows and of the codes' rows.
constexpr int64_t kTaskPanels = 4;

int64_t RoundUp(int64_t a, int64_t b) { return DivideUp(a, b) * b; }

uint64_t BitsOfSum(uint32_t sum) { return sum; }
uint64_t BitsOfSum(double sum) { return std::bit_cast<uint64_t>(sum); }

template <typename Form>
class VectorProduct {
 public:
  VectorProduct(const VectorCode& code, const Product2D& product,
                const AccumulatorMatrix& accumulators)
      : code_(code),
        product_(product),
        accumulators_(accumulators),
        plan_(product.instruction, product.chip),
        column_step_(std::lcm(int64_t{product.instruction.n}, int64_t{kPanel})) {}

  void Run() {
    const Problem& problem = product_.problem;
    const int64_t super_columns = RoundUp(kSuperLines, column_step_);
    for (int64_t row = 0; row < problem.m; row += kSuperLines) {
      for (int64_t column = 0; column < problem.n; column += super_columns) {
        if (IsSet(product_.abort)) return;
        shape_.first_row = row;
        shape_.rows = RoundUp(std::min(kSuperLines, problem.m - row), RowStep());
        shape_.first_column = column;
        shape_.columns = RoundUp(std::min(super_columns, problem.n - column), column_step_);
        RunSuper();
      }
    }
  }

 private:
  using Sum = typename Form::Sum;
  using Reader = TileReader<typename Form::Word>;

  // The smallest number of rows that is a multiple for both tiles and vector code.
  int64_t RowStep() const { return std::lcm(int64_t{plan_.tile_rows}, int64_t{kIntegerRows}); }

  void RunSuper() {
    const int64_t k = product_.problem.k;
    const int64_t step = std::max(Form::kDepth / plan_.depth, int64_t{1});
    const auto size = static_cast<size_t>(shape_.rows * shape_.columns);
    sums_.assign(size, Sum{0});
    totals_.assign(product_.promotion_k > 0 ? size : 0, 0);
    const int64_t all = DivideUp(k, plan_.depth);
    // Instructions from one promotion to the next; a chunk ends there.
    const int64_t promotion = product_.promotion_k > 0 ? product_.promotion_k / plan_.depth : all;
    for (int64_t done = 0; done < all && !IsSet(product_.abort); done += shape_.instructions) {
      const int64_t until_promotion = promotion - done % promotion;
      shape_.k = done * plan_.depth;
      shape_.instructions = std::min({step, all - done, until_promotion});
      RunChunk();
      const bool ends = shape_.instructions == until_promotion || done + shape_.instructions == all;
      if (ends && !totals_.empty()) Promote(done / promotion * product_.promotion_k);
    }
    Store();
  }

  // Adds the sums from `k` on to the totals, and resets them.
  void Promote(int64_t k) {
    if constexpr (std::is_same_v<Form, FusedForm>) {
      const PromotionFactors factors(product_);
      column_factors_.resize(factors.are_used() ? static_cast<size_t>(shape_.columns) : 0);
      for (size_t i = 0; i < column_factors_.size(); ++i) {
        column_factors_[i] = factors.OfColumn(shape_.first_column + static_cast<int64_t>(i), k);
      }
      ParallelFor(Threads(), shape_.rows, product_.abort, [&](int, int64_t row) {
        const auto columns = static_cast<size_t>(shape_.columns);
        uint32_t* const totals = &totals_[static_cast<size_t>(row) * columns];
        Sum* const sums = &sums_[static_cast<size_t>(row) * columns];
        if (factors.are_used()) {
          const float of_row = factors.OfRow(shape_.first_row + row, k);
          for (size_t i = 0; i < columns; ++i) {
            totals[i] = AddScaledF32(sums[i], of_row * column_factors_[i], totals[i]);
          }
        } else {
          for (size_t i = 0; i < columns; ++i) totals[i] = AddF32(totals[i], sums[i]);
        }
        std::fill_n(sums, columns, Sum{0});
      });
    }
  }

  struct Scratch {
    std::vector<uint64_t> matrix;
    std::vector<uint32_t> registers;
  };

  // The number of threads for a chunk: one if starting more costs more than it saves.
  int Threads() const {
    constexpr double kShared = 2e5;  // Multiplications; about 100 us of one thread.
    const double all = static_cast<double>(shape_.rows) * static_cast<double>(shape_.columns) *
                       static_cast<double>(product_.problem.k);
    return all < kShared ? 1 : omp_get_max_threads();
  }

  void RunChunk() {
    form_.Resize(plan_, shape_);
    const int64_t n = plan_.instruction.n;
    const int64_t panels = shape_.columns / kPanel;
    const int64_t tasks_down = DivideUp(shape_.rows, kTaskRows);
    const int64_t tasks_along = DivideUp(panels, kTaskPanels);
    const int64_t row_tiles = shape_.rows / plan_.tile_rows;
    const int threads = Threads();
    while (static_cast<int>(readers_.size()) < threads) readers_.emplace_back(plan_, product_);
    const int64_t tiles = row_tiles + shape_.columns / n;
    ParallelFor(threads, tiles, product_.abort, [&](int worker, int64_t tile) {
      Reader& reader = readers_[static_cast<size_t>(worker)];
      const int64_t row = tile * plan_.tile_rows;
      const int64_t column = (tile - row_tiles) * n;
      for (int64_t i = 0; i < shape_.instructions; ++i) {
        const int64_t k = shape_.k + i * plan_.depth;
        if (tile < row_tiles) {
          form_.PackA(plan_, shape_, row, i, reader.ReadA(shape_.first_row + row, k), reader.a_k());
        } else {
          form_.PackB(plan_, shape_, column, i, reader.ReadB(k, shape_.first_column + column));
        }
      }
    });
    ParallelFor(threads, tasks_down * tasks_along, product_.abort, [&](int, int64_t task) {
      const int64_t row = task / tasks_along * kTaskRows;
      const int64_t first = task % tasks_along * kTaskPanels;
      for (int64_t panel = first; panel < std::min(first + kTaskPanels, panels); ++panel) {
        if (IsSet(product_.abort)) return;
        form_.Run(code_, plan_, shape_, {row, std::min(kTaskRows, shape_.rows - row), panel},
                  sums_.data(), shape_.columns);
      }
    });
  }

  // Sums are also stored through registers.
  void Store() {
    const int threads = Threads();
    std::vector<Scratch> scratch(static_cast<size_t>(threads));
    for (Scratch& one : scratch) {
      one.matrix.resize(plan_.d_map.elements());
      one.registers.resize(plan_.d_map.words());
    }
    const int64_t tiles = shape_.rows / plan_.tile_rows;
    if constexpr (std::is_same_v<Form, FusedForm>) {
      if (!totals_.empty()) sums_.swap(totals_);
    }
    ParallelFor(threads, tiles, product_.abort, [&](int worker, int64_t tile) {
      for (int64_t column = 0; column < shape_.columns; column += plan_.instruction.n) {
        StoreTile(tile * plan_.tile_rows, column, scratch[static_cast<size_t>(worker)]);
      }
    });
  }

  void StoreTile(int64_t row, int64_t column, Scratch& scratch) {
    std::vector<uint64_t>& matrix = scratch.matrix;
    const int64_t n = plan_.instruction.n;
    const int64_t rows =
        std::min<int64_t>(plan_.tile_rows, product_.problem.m - shape_.first_row - row);
    const int64_t columns = std::min(n, product_.problem.n - shape_.first_column - column);
    for (int64_t i = 0; i < plan_.tile_rows; ++i) {
      const Sum* line = &sums_[static_cast<size_t>((row + i) * shape_.columns + column)];
      for (int64_t j = 0; j < n; ++j) matrix[static_cast<size_t>(i * n + j)] = BitsOfSum(line[j]);
    }
    plan_.d_map.Scatter(matrix.data(), scratch.registers);
    plan_.d_map.Gather(scratch.registers, matrix.data());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const uint64_t bits = matrix[static_cast<size_t>(i * n + j)];
        StoreAccumulator(accumulators_, shape_.first_row + row + i,
                         shape_.first_column + column + j,
                         ConvertSum(plan_.instruction.d, accumulators_.type, bits));
      }
    }
  }

  const VectorCode& code_;
  const Product2D& product_;
  const AccumulatorMatrix& accumulators_;
  const PackingPlan plan_;
  const int64_t column_step_;
  ChunkShape shape_ = {};
  Form form_;
  std::vector<Sum> sums_;
  std::vector<uint32_t> totals_;  // With promotion; f32.
  std::vector<float> column_factors_;
  std::deque<Reader> readers_;  // One for each thread.
};

template <typename Form>
void Multiply(const VectorCode& code, const Product2D& product,
              const AccumulatorMatrix& accumulators) {
  VectorProduct<Form>(code, product, accumulators).Run();
}

}  // namespace

bool HasVectorCode(const mma::Instruction& instruction, mma::Chip chip) {
  const mma::Arithmetic arithmetic = mma::ArithmeticOf(instruction, chip);
  // Only the plain code handles factors that instructions take.
  if (instruction.scales > 0 || arithmetic.algorithm == mma::Algorithm::kScaledGroups) return false;
  if (!mma::IsFused(arithmetic)) return true;
  return arithmetic.block == 4 || arithmetic.block == 8 || arithmetic.block == 16 ||
         arithmetic.block == 32;
}

void MultiplyVectors(const VectorCode& code, const Product2D& product,
                     const AccumulatorMatrix& accumulators) {
  switch (mma::ArithmeticOf(product.instruction, product.chip).algorithm) {
    case mma::Algorithm::kFusedSums:
    case mma::Algorithm::kFusedHalvesThenC: return Multiply<FusedForm>(code, product, accumulators);
    case mma::Algorithm::kScaledGroups: return;
    case mma::Algorithm::kMultiplyAdds:
      return Multiply<FloatForm<float>>(code, product, accumulators);
    case mma::Algorithm::kMultiplyAddsF64:
      return Multiply<FloatForm<double>>(code, product, accumulators);
    case mma::Algorithm::kIntegers: return Multiply<IntegerForm>(code, product, accumulators);
    case mma::Algorithm::kBitCounts: return Multiply<BitForm>(code, product, accumulators);
  }
}

}  // namespace gemmd::sim
