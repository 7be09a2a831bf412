// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/product.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "kernels/matrix/split_float.h"
#include "kernels/sim/parallel.h"
#include "kernels/sim/scalar.h"
#include "kernels/sim/tiles.h"
#include "kernels/sim/unit.h"
#include "kernels/sim/vector_product.h"

namespace gemmd::sim {
namespace {

// One thread of the scalar path, on which every tile goes through registers and the plain unit: its
// registers and scratch matrices.
class TileWorker {
 public:
  explicit TileWorker(const Product2D& product)
      : product_(product),
        instruction_(product.instruction),
        unit_(instruction_, product.chip),
        a_tiles_(product),
        factor_tiles_(product),
        promotion_factors_(product),
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
        Promote(row, column, k - promotion_k);
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
      Promote(row, column, (product_.problem.k - 1) / promotion_k * promotion_k);
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

  // Adds the instructions' sums from `k` on to the totals.
  void Promote(int64_t row, int64_t column, int64_t k) {
    unit_.d_map().Gather(d_, matrix_.data());
    const auto columns = static_cast<size_t>(instruction_.n);
    for (size_t i = 0; i < totals_.size(); ++i) {
      const auto sum = static_cast<uint32_t>(matrix_[i]);
      if (!promotion_factors_.are_used()) {
        totals_[i] = AddF32(totals_[i], sum);
        continue;
      }
      const float factor =
          promotion_factors_.OfRow(row + static_cast<int64_t>(i / columns), k) *
          promotion_factors_.OfColumn(column + static_cast<int64_t>(i % columns), k);
      totals_[i] = AddScaledF32(sum, factor, totals_[i]);
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
  const PromotionFactors promotion_factors_;
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
  std::deque<TileWorker> workers;  // A deque, because workers must not move.
  for (int i = 0; i < threads; ++i) workers.emplace_back(product);
  ParallelFor(threads, tiles, product.abort, [&](int worker, int64_t tile) {
    workers[static_cast<size_t>(worker)].Run(tile / tiles_along * rows,
                                             tile % tiles_along * instruction.n, accumulators);
  });
}

bool CanRun(Path path, const mma::Instruction& instruction, mma::Chip chip) {
  switch (path) {
    case Path::kScalar: return true;
    case Path::kAvx2: return Avx2Code() != nullptr && HasVectorCode(instruction, chip);
    case Path::kAvx512: return Avx512Code() != nullptr && HasVectorCode(instruction, chip);
  }
  return false;
}

Path BestPath(const mma::Instruction& instruction, mma::Chip chip) {
  for (const Path path : {Path::kAvx512, Path::kAvx2}) {
    if (CanRun(path, instruction, chip)) return path;
  }
  return Path::kScalar;
}

void Multiply(Path path, const Product2D& product, const AccumulatorMatrix& accumulators) {
  switch (path) {
    case Path::kScalar: return MultiplyScalar(product, accumulators);
    case Path::kAvx2: return MultiplyVectors(*Avx2Code(), product, accumulators);
    case Path::kAvx512: return MultiplyVectors(*Avx512Code(), product, accumulators);
  }
}

namespace {

// Elements of k per instruction.
constexpr int64_t kStep = 16;

// The number of threads for `a` + `b` elements: one if starting more costs more than it saves.
int ThreadsFor(int64_t a, int64_t b) {
  constexpr double kShared = 5e4;
  return static_cast<double>(a) * static_cast<double>(b) < kShared ? 1 : omp_get_max_threads();
}

int64_t PaddedDepth(int64_t k) { return (k + kStep - 1) / kStep * kStep; }

// The lines of one operand: rows of A or columns of B.
class SplitOperand {
 public:
  SplitOperand(const MatrixLayout& layout, const std::byte* data, bool has_rows, AbortFlag abort)
      : layout_(layout), data_(data), has_rows_(has_rows), abort_(abort) {}

  int64_t lines() const { return has_rows_ ? layout_.rows : layout_.columns; }
  int64_t k() const { return has_rows_ ? layout_.columns : layout_.rows; }
  const SplitLine& line(int64_t index) const { return line_of_[static_cast<size_t>(index)]; }

  float At(int64_t line, int64_t k) const {
    const bool is_along = has_rows_ == (layout_.order == Order::kRowMajor);
    float value;
    std::memcpy(&value,
                data_ + (is_along ? line : k) * layout_.line_stride_bytes() +
                    (is_along ? k : line) * static_cast<int64_t>(sizeof(value)),
                sizeof(value));
    return value;
  }

  // Writes the high parts to lines of PaddedDepth(k) f16, and the operands of the cross sums to
  // lines of twice that length: for each step of k, low before high in A, high before low in B.
  void Split(uint16_t* high, uint16_t* cross) {
    const int64_t depth = PaddedDepth(k());
    line_of_.resize(static_cast<size_t>(lines()));
    ParallelFor(ThreadsFor(lines(), k()), lines(), abort_, [&](int, int64_t index) {
      MagnitudeRange range;
      for (int64_t i = 0; i < k(); ++i) {
        range.Include(MagnitudeRange::Of(std::bit_cast<uint32_t>(At(index, i))));
      }
      const SplitLine line = SplitLineOf(range);
      line_of_[static_cast<size_t>(index)] = line;
      uint16_t* const highs = high + index * depth;
      uint16_t* const steps = cross + index * 2 * depth;
      for (int64_t i = 0; i < depth; ++i) {
        SplitElement element;
        if (i < k()) element = SplitOf<PortableF16>(At(index, i), line.scale());
        const int64_t first = i / kStep * 2 * kStep + i % kStep;
        highs[i] = static_cast<uint16_t>(element.high);
        steps[first] = static_cast<uint16_t>(has_rows_ ? element.low : element.high);
        steps[first + kStep] = static_cast<uint16_t>(has_rows_ ? element.high : element.low);
      }
    });
  }

 private:
  const MatrixLayout& layout_;
  const std::byte* data_;
  bool has_rows_;
  AbortFlag abort_;
  std::vector<SplitLine> line_of_;
};

float ExactSum(const SplitOperand& a, int64_t row, const SplitOperand& b, int64_t column) {
  double sum = 0;  // A product of two f32 is exact.
  for (int64_t k = 0; k < a.k(); ++k) sum += double{a.At(row, k)} * double{b.At(column, k)};
  return static_cast<float>(sum);
}

float JoinedSum(const SplitOperand& a, int64_t row, const SplitOperand& b, int64_t column,
                float main_sum, float cross_sum) {
  const float sum = JoinSplitSums(main_sum, cross_sum);
  if (NeedsExactSum(a.line(row), b.line(column), sum, a.k())) return ExactSum(a, row, b, column);
  return ScaleBack(sum, a.line(row), b.line(column));
}

// A product of f16 of a depth.
Problem HalfProblem(const Problem& problem, int64_t k) {
  Problem half;
  half.m = problem.m;
  half.n = problem.n;
  half.k = k;
  half.a = *TightLayout("a", ElementType::kF16, Order::kRowMajor, half.m, k);
  half.b = *TightLayout("b", ElementType::kF16, Order::kColumnMajor, k, half.n);
  half.d = problem.d;
  return half;
}

}  // namespace

Checked SplitBytes(const Problem& problem) {
  if (!IsSplit(problem.k)) return Checked(0);
  constexpr int64_t kPartsOfElement = 3;  // Codes of f16: one for main, two for cross.
  const Checked codes = (Checked(problem.m) + Checked(problem.n)) *
                        Checked(PaddedDepth(problem.k)) * Checked(kPartsOfElement);
  const Checked cross_sums = Checked(problem.m) * Checked(problem.n);
  return codes * Checked(int64_t{sizeof(uint16_t)}) + cross_sums * Checked(int64_t{sizeof(float)});
}

void MultiplySplit(Path path, const Product2D& product, const AccumulatorMatrix& accumulators,
                   std::byte* memory) {
  const Problem& problem = product.problem;
  SplitOperand a(problem.a, product.a, true, product.abort);
  SplitOperand b(problem.b, product.b, false, product.abort);
  const bool is_row_major = accumulators.order == Order::kRowMajor;
  const int64_t lines = is_row_major ? problem.m : problem.n;
  const int64_t length = is_row_major ? problem.n : problem.m;
  // body(row, column, index of the element in accumulators with this leading dimension)
  const auto for_each = [&](const auto& body) {
    ParallelFor(ThreadsFor(lines, length), lines, product.abort, [&](int, int64_t line) {
      for (int64_t i = 0; i < length && !IsSet(product.abort); ++i) {
        body(is_row_major ? line : i, is_row_major ? i : line, line, i);
      }
    });
  };
  float* const sums = reinterpret_cast<float*>(accumulators.data);
  const int64_t stride = accumulators.leading_dimension;
  if (!IsSplit(problem.k)) {
    for_each([&](int64_t row, int64_t column, int64_t line, int64_t i) {
      sums[line * stride + i] = ExactSum(a, row, b, column);
    });
    return;
  }
  const int64_t depth = PaddedDepth(problem.k);
  float* const cross_sums = reinterpret_cast<float*>(memory);
  auto* const a_high = reinterpret_cast<uint16_t*>(cross_sums + problem.m * problem.n);
  uint16_t* const a_cross = a_high + problem.m * depth;
  uint16_t* const b_high = a_cross + problem.m * 2 * depth;
  uint16_t* const b_cross = b_high + problem.n * depth;
  a.Split(a_high, a_cross);
  b.Split(b_high, b_cross);
  const auto multiply = [&](const uint16_t* of_a, const uint16_t* of_b, int64_t k, int promotion_k,
                            const AccumulatorMatrix& target) {
    Multiply(path,
             {.instruction = product.instruction,
              .chip = product.chip,
              .problem = HalfProblem(problem, k),
              .a = reinterpret_cast<const std::byte*>(of_a),
              .b = reinterpret_cast<const std::byte*>(of_b),
              .abort = product.abort,
              .promotion_k = promotion_k},
             target);
  };
  multiply(a_high, b_high, depth, product.promotion_k, accumulators);
  multiply(a_cross, b_cross, 2 * depth, 0,
           {.data = memory,
            .type = ElementType::kF32,
            .order = accumulators.order,
            .leading_dimension = length});
  if (IsSet(product.abort)) return;
  for_each([&](int64_t row, int64_t column, int64_t line, int64_t i) {
    float& sum = sums[line * stride + i];
    sum = JoinedSum(a, row, b, column, sum, cross_sums[line * length + i]);
  });
}

struct SplitSample::Operands {
  Operands() {
    std::minstd_rand random;
    std::normal_distribution<float> normal;
    for (std::vector<float>* const values : {&a_values, &b_values}) {
      for (float& value : *values) value = normal(random);
    }
  }

  const MatrixLayout a_layout =
      TightLayout("a", ElementType::kF32, Order::kRowMajor, kLines, kDepth).value();
  const MatrixLayout b_layout =
      TightLayout("b", ElementType::kF32, Order::kRowMajor, kDepth, kLines).value();
  std::vector<float> a_values = std::vector<float>(kLines * kDepth);
  std::vector<float> b_values = std::vector<float>(kDepth * kLines);
  SplitOperand a{a_layout, reinterpret_cast<const std::byte*>(a_values.data()), true, nullptr};
  SplitOperand b{b_layout, reinterpret_cast<const std::byte*>(b_values.data()), false, nullptr};
  std::vector<uint16_t> high = std::vector<uint16_t>(kLines * kDepth);
  std::vector<uint16_t> cross = std::vector<uint16_t>(2 * kLines * kDepth);
  std::vector<float> sums = std::vector<float>(kJoined, 1.0F);
};

SplitSample::SplitSample() : operands_(std::make_unique<Operands>()) { Split(); }
SplitSample::~SplitSample() = default;

void SplitSample::Split() {
  operands_->a.Split(operands_->high.data(), operands_->cross.data());
  operands_->b.Split(operands_->high.data(), operands_->cross.data());
}

void SplitSample::Join() {
  for (int64_t row = 0; row < kLines; ++row) {
    for (int64_t column = 0; column < kLines; ++column) {
      float& sum = operands_->sums[static_cast<size_t>(row * kLines + column)];
      sum = 1 + 1e-9F * JoinedSum(operands_->a, row, operands_->b, column, sum, sum);
    }
  }
}

void SplitSample::SumExactly(int64_t depth) {
  MatrixLayout a_layout = operands_->a_layout;
  MatrixLayout b_layout = operands_->b_layout;
  a_layout.columns = b_layout.rows = depth;
  const auto* const a_data = reinterpret_cast<const std::byte*>(operands_->a_values.data());
  const auto* const b_data = reinterpret_cast<const std::byte*>(operands_->b_values.data());
  const SplitOperand a(a_layout, a_data, true, nullptr);
  const SplitOperand b(b_layout, b_data, false, nullptr);
  for (int64_t row = 0; row < kLines; ++row) {
    for (int64_t column = 0; column < kLines; ++column) {
      operands_->sums[static_cast<size_t>(row * kLines + column)] = ExactSum(a, row, b, column);
    }
  }
}

}  // namespace gemmd::sim
