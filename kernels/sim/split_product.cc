// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/split_product.h"

#include <omp.h>

#include <cstring>
#include <vector>

#include "kernels/sim/parallel.h"
#include "kernels/split_float.h"

namespace gemmd::sim {
namespace {

// An instruction takes so many elements of k.
constexpr int64_t kStep = 16;

// The threads that share so many elements: only one if starting more costs more than it saves.
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

  // Writes the elements' high parts into lines of PaddedDepth(k) f16, and into those of twice as
  // many what the cross sums take: low before high in A, high before low in B, of each step of k.
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
  // body(row, column, where the element is in accumulators of this leading dimension)
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
    sum = JoinSplitSums(sum, cross_sums[line * length + i]);
    if (NeedsExactSum(a.line(row), b.line(column), sum, problem.k)) {
      sum = ExactSum(a, row, b, column);
    } else {
      sum = ScaleBack(sum, a.line(row), b.line(column));
    }
  });
}

}  // namespace gemmd::sim
