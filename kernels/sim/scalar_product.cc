// SPDX-License-Identifier: Apache-2.0
//
// The scalar path: every tile goes through registers and the plain unit.
#include "kernels/sim/scalar_product.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <vector>

#include "kernels/sim/a_tiles.h"
#include "kernels/sim/factor_tiles.h"
#include "kernels/sim/number.h"
#include "kernels/sim/parallel.h"
#include "kernels/sim/scalar.h"
#include "kernels/sim/tiles.h"
#include "kernels/sim/unit.h"

namespace gemmd::sim {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One thread's registers and scratch matrices.
class TileWorker {
 public:
  explicit TileWorker(const Product2D& product)
      : product_(product),
        instruction_(product.instruction),
        unit_(instruction_, product.chip),
        a_tiles_(product),
        factor_tiles_(product),
        a_(unit_.a_map().words()),
        b_(unit_.b_map().words()),
        c_(unit_.c_map().words()),
        d_(unit_.d_map().words()),
        metadata_(instruction_.is_sparse() ? static_cast<size_t>(instruction_.lanes()) : 0),
        matrix_(std::max(
            {unit_.a_map().elements(), unit_.b_map().elements(), unit_.d_map().elements()})),
        totals_(product.promotion_k > 0 ? unit_.d_map().elements() : 0) {}

  void Run(int64_t row, int64_t column, const AccumulatorMatrix& accumulators) {
    std::fill(c_.begin(), c_.end(), 0);
    std::fill(totals_.begin(), totals_.end(), 0);
    const int promotion_k = product_.promotion_k;
    for (int64_t k = 0; k < product_.problem.k && !IsSet(product_.abort); k += instruction_.k) {
      if (k > 0 && promotion_k > 0 && k % promotion_k == 0) {
        Promote();
        std::fill(c_.begin(), c_.end(), 0);
      } else if (k > 0) {
        NextC();
      }
      ScatterA(row, k);
      ScatterB(k, column);
      factor_tiles_.Load(row, column, k);
      unit_.Execute({.a = a_,
                     .b = b_,
                     .c = c_,
                     .metadata = metadata_,
                     .selector = 0,
                     .a_factors = factor_tiles_.a(),
                     .b_factors = factor_tiles_.b()},
                    d_);
    }
    if (promotion_k > 0) {
      Promote();
      std::copy(totals_.begin(), totals_.end(), matrix_.begin());
    } else {
      unit_.d_map().Gather(d_, matrix_.data());
    }
    Store(row, column, accumulators);
  }

 private:
  void ScatterA(int64_t row, int64_t k) {
    const int rows = instruction_.m * instruction_.products();
    a_k_.resize(static_cast<size_t>(rows * instruction_.a_columns()));
    a_tiles_.Load(row, k, matrix_.data(), a_k_.data());
    if (instruction_.is_sparse()) EncodeMetadata(instruction_, a_k_, 0, metadata_);
    unit_.a_map().Scatter(matrix_.data(), a_);
  }

  // Independent products have the same B.
  void ScatterB(int64_t k, int64_t column) {
    const int64_t size = int64_t{instruction_.k} * instruction_.n;
    LoadTile(product_.problem.b, product_.b, {k, column, instruction_.k, instruction_.n},
             matrix_.data());
    for (int i = 1; i < instruction_.products(); ++i) {
      std::copy_n(matrix_.data(), size, matrix_.data() + i * size);
    }
    unit_.b_map().Scatter(matrix_.data(), b_);
  }

  void NextC() {
    unit_.d_map().Gather(d_, matrix_.data());
    for (size_t i = 0; i < unit_.d_map().elements(); ++i) {
      matrix_[i] = ConvertSum(instruction_.d, instruction_.c, matrix_[i]);
    }
    unit_.c_map().Scatter(matrix_.data(), c_);
  }

  // Adds what the instructions have summed up to the totals.
  void Promote() {
    unit_.d_map().Gather(d_, matrix_.data());
    for (size_t i = 0; i < totals_.size(); ++i) {
      totals_[i] = AddF32(totals_[i], static_cast<uint32_t>(matrix_[i]));
    }
  }

  // Stores the tile that matrix_ holds.
  void Store(int64_t row, int64_t column, const AccumulatorMatrix& accumulators) {
    const int64_t rows = instruction_.m * instruction_.products();
    const Problem& problem = product_.problem;
    for (int64_t i = 0; i < std::min(rows, problem.m - row); ++i) {
      for (int64_t j = 0; j < std::min<int64_t>(instruction_.n, problem.n - column); ++j) {
        const uint64_t bits = matrix_[static_cast<size_t>(i * instruction_.n + j)];
        StoreAccumulator(accumulators, row + i, column + j,
                         ConvertSum(instruction_.d, accumulators.type, bits));
      }
    }
  }

  const Product2D& product_;
  const mma::Instruction& instruction_;
  Unit unit_;
  const ATiles a_tiles_;
  FactorTiles factor_tiles_;
  std::vector<uint32_t> a_;
  std::vector<uint32_t> b_;
  std::vector<uint32_t> c_;
  std::vector<uint32_t> d_;
  std::vector<uint32_t> metadata_;
  std::vector<uint64_t> matrix_;
  std::vector<uint32_t> totals_;  // With promotion.
  std::vector<int> a_k_;
};

}  // namespace

uint64_t ConvertSum(ElementType from, ElementType to, uint64_t bits) {
  const auto word = static_cast<uint32_t>(bits);
  if (from == ElementType::kF16 && to == ElementType::kF32) return F32FromF16(word);
  if (from == ElementType::kF32 && to == ElementType::kF16) return F16FromF32(word);
  return bits;
}

void StoreAccumulator(const AccumulatorMatrix& accumulators, int64_t row, int64_t column,
                      uint64_t bits) {
  const int64_t at = accumulators.order == Order::kRowMajor
                         ? row * accumulators.leading_dimension + column
                         : column * accumulators.leading_dimension + row;
  const auto size = static_cast<size_t>(BitsOf(accumulators.type) / 8);
  std::memcpy(accumulators.data + at * static_cast<int64_t>(size), &bits, size);
}

void MultiplyScalar(const Product2D& product, const AccumulatorMatrix& accumulators) {
  const mma::Instruction& instruction = product.instruction;
  const int64_t rows = instruction.m * instruction.products();
  const int64_t tiles_down = DivideUp(product.problem.m, rows);
  const int64_t tiles_along = DivideUp(product.problem.n, instruction.n);
  const int64_t tiles = tiles_down * tiles_along;
  const int threads = tiles > 1 ? omp_get_max_threads() : 1;
  std::deque<TileWorker> workers;  // A deque, because workers must stay where they are.
  for (int i = 0; i < threads; ++i) workers.emplace_back(product);
  ParallelFor(threads, tiles, product.abort, [&](int worker, int64_t tile) {
    workers[static_cast<size_t>(worker)].Run(tile / tiles_along * rows,
                                             tile % tiles_along * instruction.n, accumulators);
  });
}

}  // namespace gemmd::sim
