// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/vector_product.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "kernels/sim/packing.h"
#include "kernels/sim/scalar_product.h"

namespace gemmd::sim {
namespace {

// Elements along k that are packed at once: with 16 columns and 8 bytes each, half of a 64 KiB
// first-level cache. Bits take so little that deeper chunks cost nothing.
constexpr int64_t kChunkDepth = 256;
constexpr int64_t kBitChunkDepth = 4096;
// Lines of the result that are worked on at once; this bounds the scratch memory to some 40 MiB.
constexpr int64_t kSuperLines = 2048;
constexpr int64_t kTaskRows = 64;  // A multiple of every tile's rows and of the codes' rows.
constexpr int64_t kTaskPanels = 4;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t a, int64_t b) { return DivideUp(a, b) * b; }

// What one task computes: rows against one panel.
struct Region {
  int64_t row;  // From the chunk's first one.
  int64_t rows;
  int64_t panel;
};

// The forms of operands, each with the code that multiplies it: how sums are kept, how deep chunks
// are, and a region's work.
struct FusedForm {
  using Chunk = FusedChunk;
  using Operand = uint32_t;
  using Sum = uint32_t;
  static constexpr int64_t kDepth = kChunkDepth;

  static void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
                  const Chunk& chunk, const Region& region, Sum* sums, int64_t stride) {
    const int64_t products = shape.instructions * plan.products;
    const int64_t panel = region.panel * shape.instructions * plan.depth * kPanel;
    for (int64_t row = region.row; row < region.row + region.rows; ++row) {
      const int32_t* rows = nullptr;
      if (!chunk.a_rows.empty()) {
        rows = chunk.a_rows.data() + (plan.instruction.is_sparse() ? row * products : 0);
      }
      code.fused({.instruction = &plan.instruction,
                  .arithmetic = &plan.arithmetic,
                  .instructions = static_cast<int>(shape.instructions),
                  .a = &chunk.a[static_cast<size_t>(row * products)],
                  .a_bits = &chunk.a_bits[static_cast<size_t>(row * products)],
                  .a_rows = rows,
                  .significands = &chunk.b_significands[static_cast<size_t>(panel)],
                  .exponents = &chunk.b_exponents[static_cast<size_t>(panel)],
                  .b_bits = &chunk.b_bits[static_cast<size_t>(panel)],
                  .sums = sums + row * stride + region.panel * kPanel});
    }
  }
};

struct IntegerForm {
  using Chunk = IntegerChunk;
  using Operand = uint32_t;
  using Sum = uint32_t;
  static constexpr int64_t kDepth = 2 * kChunkDepth;

  static void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
                  const Chunk& chunk, const Region& region, Sum* sums, int64_t stride) {
    const int64_t pairs = shape.instructions * plan.depth / 2;
    for (int64_t row = region.row; row < region.row + region.rows; row += kIntegerRows) {
      code.integers({.pairs_per_instruction = plan.depth / 2,
                     .instructions = static_cast<int>(shape.instructions),
                     .saturates = plan.instruction.saturates,
                     .a = &chunk.a[static_cast<size_t>(row * pairs)],
                     .a_stride = pairs,
                     .b = &chunk.b[static_cast<size_t>(region.panel * pairs * kPanel)],
                     .sums = sums + row * stride + region.panel * kPanel,
                     .sums_stride = stride});
    }
  }
};

struct BitForm {
  using Chunk = BitChunk;
  using Operand = uint32_t;
  using Sum = uint32_t;
  static constexpr int64_t kDepth = kBitChunkDepth;

  static void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
                  const Chunk& chunk, const Region& region, Sum* sums, int64_t stride) {
    const int64_t words = shape.instructions * plan.depth / 64;
    for (int64_t row = region.row; row < region.row + region.rows; ++row) {
      code.bits({.words = static_cast<int>(words),
                 .is_xor = plan.instruction.bit_count == mma::BitCount::kXor,
                 .a = &chunk.a[static_cast<size_t>(row * words)],
                 .b = &chunk.b[static_cast<size_t>(region.panel * kPanel * words)],
                 .sums = sums + row * stride + region.panel * kPanel});
    }
  }
};

struct F64Form {
  using Chunk = FloatChunk<double>;
  using Operand = uint64_t;
  using Sum = double;
  static constexpr int64_t kDepth = kChunkDepth;

  static void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
                  const Chunk& chunk, const Region& region, Sum* sums, int64_t stride) {
    const int64_t depth = shape.instructions * plan.depth;
    for (int64_t row = region.row; row < region.row + region.rows; row += kF64Rows) {
      code.f64({.rounding = plan.instruction.rounding,
                .depth = static_cast<int>(depth),
                .a = &chunk.a[static_cast<size_t>(row * depth)],
                .a_stride = depth,
                .b = &chunk.b[static_cast<size_t>(region.panel * depth * kPanel)],
                .sums = sums + row * stride + region.panel * kPanel,
                .sums_stride = stride});
    }
  }
};

struct MultiplyAddForm {
  using Chunk = FloatChunk<float>;
  using Operand = uint32_t;
  using Sum = uint32_t;
  static constexpr int64_t kDepth = kChunkDepth;

  static void Run(const VectorCode& code, const PackingPlan& plan, const ChunkShape& shape,
                  const Chunk& chunk, const Region& region, Sum* sums, int64_t stride) {
    const int64_t depth = shape.instructions * plan.depth;
    for (int64_t row = region.row; row < region.row + region.rows; ++row) {
      code.multiply_adds({.c = plan.instruction.c,
                          .d = plan.instruction.d,
                          .instructions = static_cast<int>(shape.instructions),
                          .a = &chunk.a[static_cast<size_t>(row * depth)],
                          .b = &chunk.b[static_cast<size_t>(region.panel * depth * kPanel)],
                          .sums = sums + row * stride + region.panel * kPanel});
    }
  }
};

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
  using Reader = TileReader<typename Form::Operand>;

  // Rows of the smallest part that is whole for tiles and codes.
  int64_t RowStep() const { return std::lcm(int64_t{plan_.tile_rows}, int64_t{kIntegerRows}); }

  void RunSuper() {
    const int64_t k = product_.problem.k;
    const int64_t step = std::max(Form::kDepth / plan_.depth, int64_t{1});
    sums_.assign(static_cast<size_t>(shape_.rows * shape_.columns), Sum{0});
    const int64_t all = DivideUp(k, plan_.depth);
    for (int64_t done = 0; done < all; done += step) {
      shape_.k = done * plan_.depth;
      shape_.instructions = std::min(step, all - done);
      RunChunk();
    }
    Store();
  }

  // Whether starting threads costs more than it saves.
  bool IsSmall() const {
    constexpr double kShared = 1e5;  // Multiplications, some 50 us of one thread.
    return static_cast<double>(shape_.rows) * static_cast<double>(shape_.columns) *
               static_cast<double>(product_.problem.k) <
           kShared;
  }

  void RunChunk() {
    chunk_.Resize(plan_, shape_);
    const int64_t n = plan_.instruction.n;
    const int64_t panels = shape_.columns / kPanel;
    const int64_t tasks_down = DivideUp(shape_.rows, kTaskRows);
    const int64_t tasks_along = DivideUp(panels, kTaskPanels);
#pragma omp parallel if (!IsSmall())
    {
      Reader reader(plan_, product_);
#pragma omp for schedule(dynamic) nowait
      for (int64_t row = 0; row < shape_.rows; row += plan_.tile_rows) {
        chunk_.PackA(plan_, shape_, row, reader);
      }
#pragma omp for schedule(dynamic)
      for (int64_t column = 0; column < shape_.columns; column += n) {
        chunk_.PackB(plan_, shape_, column, reader);
      }
#pragma omp for schedule(dynamic)
      for (int64_t task = 0; task < tasks_down * tasks_along; ++task) {
        const int64_t row = task / tasks_along * kTaskRows;
        const int64_t first = task % tasks_along * kTaskPanels;
        for (int64_t panel = first; panel < std::min(first + kTaskPanels, panels); ++panel) {
          Form::Run(code_, plan_, shape_, chunk_,
                    {row, std::min(kTaskRows, shape_.rows - row), panel}, sums_.data(),
                    shape_.columns);
        }
      }
    }
  }

  // Sums leave by way of registers, too.
  void Store() {
#pragma omp parallel if (!IsSmall())
    {
      std::vector<uint64_t> matrix(plan_.d_map.elements());
      std::vector<uint32_t> registers(plan_.d_map.words());
#pragma omp for schedule(dynamic)
      for (int64_t row = 0; row < shape_.rows; row += plan_.tile_rows) {
        for (int64_t column = 0; column < shape_.columns; column += plan_.instruction.n) {
          StoreTile(row, column, matrix, registers);
        }
      }
    }
  }

  void StoreTile(int64_t row, int64_t column, std::vector<uint64_t>& matrix,
                 std::vector<uint32_t>& registers) {
    const int64_t n = plan_.instruction.n;
    const int64_t rows =
        std::min<int64_t>(plan_.tile_rows, product_.problem.m - shape_.first_row - row);
    const int64_t columns = std::min(n, product_.problem.n - shape_.first_column - column);
    for (int64_t i = 0; i < plan_.tile_rows; ++i) {
      const Sum* line = &sums_[static_cast<size_t>((row + i) * shape_.columns + column)];
      for (int64_t j = 0; j < n; ++j) matrix[static_cast<size_t>(i * n + j)] = BitsOfSum(line[j]);
    }
    plan_.d_map.Scatter(matrix.data(), registers);
    plan_.d_map.Gather(registers, matrix.data());
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
  typename Form::Chunk chunk_;
  std::vector<Sum> sums_;
};

template <typename Form>
void Multiply(const VectorCode& code, const Product2D& product,
              const AccumulatorMatrix& accumulators) {
  VectorProduct<Form>(code, product, accumulators).Run();
}

}  // namespace

bool HasVectorCode(const mma::Instruction& instruction, mma::Chip chip) {
  const mma::Arithmetic arithmetic = mma::ArithmeticOf(instruction, chip);
  // Factors of blocks are for the plain code alone.
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
      return Multiply<MultiplyAddForm>(code, product, accumulators);
    case mma::Algorithm::kMultiplyAddsF64: return Multiply<F64Form>(code, product, accumulators);
    case mma::Algorithm::kIntegers: return Multiply<IntegerForm>(code, product, accumulators);
    case mma::Algorithm::kBitCounts: return Multiply<BitForm>(code, product, accumulators);
  }
}

}  // namespace gemmd::sim
