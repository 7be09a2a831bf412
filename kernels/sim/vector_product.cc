// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/vector_product.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <numeric>
#include <type_traits>
#include <vector>

#include "kernels/sim/forms.h"
#include "kernels/sim/packing.h"
#include "kernels/sim/parallel.h"
#include "kernels/sim/scalar.h"
#include "kernels/sim/scalar_product.h"

namespace gemmd::sim {
namespace {

// Lines of the result that are computed at once; this bounds the scratch memory to some 40 MiB.
constexpr int64_t kSuperLines = 2048;
constexpr int64_t kTaskRows = 64;  // A multiple of every tile's rows and of the codes' rows.
constexpr int64_t kTaskPanels = 4;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
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
  using Reader = TileReader<typename Form::Operand>;

  // Rows of the smallest part that is whole both for tiles and for the vector code.
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
      if (ends && !totals_.empty()) Promote();
    }
    Store();
  }

  // Adds the sums to the totals, and starts them anew.
  void Promote() {
    if constexpr (std::is_same_v<Form, FusedForm>) {
      ParallelFor(Threads(), shape_.rows, product_.abort, [&](int, int64_t row) {
        const auto first = static_cast<size_t>(row * shape_.columns);
        for (size_t i = first; i < first + static_cast<size_t>(shape_.columns); ++i) {
          totals_[i] = AddF32(totals_[i], sums_[i]);
          sums_[i] = 0;
        }
      });
    }
  }

  struct Scratch {
    std::vector<uint64_t> matrix;
    std::vector<uint32_t> registers;
  };

  // The threads that share a chunk: only one if starting more costs more than it saves.
  int Threads() const {
    constexpr double kShared = 2e5;  // In multiplications; some 100 us of one thread.
    const double all = static_cast<double>(shape_.rows) * static_cast<double>(shape_.columns) *
                       static_cast<double>(product_.problem.k);
    return all < kShared ? 1 : omp_get_max_threads();
  }

  void RunChunk() {
    chunk_.Resize(plan_, shape_);
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
      if (tile < row_tiles) {
        chunk_.PackA(plan_, shape_, tile * plan_.tile_rows, reader);
      } else {
        chunk_.PackB(plan_, shape_, (tile - row_tiles) * n, reader);
      }
    });
    ParallelFor(threads, tasks_down * tasks_along, product_.abort, [&](int, int64_t task) {
      const int64_t row = task / tasks_along * kTaskRows;
      const int64_t first = task % tasks_along * kTaskPanels;
      for (int64_t panel = first; panel < std::min(first + kTaskPanels, panels); ++panel) {
        if (IsSet(product_.abort)) return;
        Form::Run(code_, plan_, shape_, chunk_,
                  {row, std::min(kTaskRows, shape_.rows - row), panel}, sums_.data(),
                  shape_.columns);
      }
    });
  }

  // Sums leave through registers, too.
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
  typename Form::Chunk chunk_;
  std::vector<Sum> sums_;
  std::vector<uint32_t> totals_;  // With promotion; f32.
  std::deque<Reader> readers_;    // One for each thread.
};

template <typename Form>
void Multiply(const VectorCode& code, const Product2D& product,
              const AccumulatorMatrix& accumulators) {
  VectorProduct<Form>(code, product, accumulators).Run();
}

}  // namespace

bool HasVectorCode(const mma::Instruction& instruction, mma::Chip chip) {
  const mma::Arithmetic arithmetic = mma::ArithmeticOf(instruction, chip);
  // Only the plain code handles factors of blocks.
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
