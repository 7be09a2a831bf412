// SPDX-License-Identifier: Apache-2.0
#include "kernels/verify/checksum.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <numeric>
#include <vector>

#include "kernels/matrix/abort.h"
#include "kernels/matrix/element.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/problem.h"
#include "kernels/verify/recompute.h"

namespace gemmd::verify {
namespace {

// A matrix times a vector. For each row i of a dense matrix x: sums[i] = sum of x_ij factors_j and
// squares[i] = sum of x_ij^2 weights_j. Infinities and NaNs propagate. Unspecified once the flag is
// set.
struct LineSums {
  std::vector<double> sums;
  std::vector<double> squares;
};

// A number modulo 2^32 and modulo a prime; or, where sums exceed 32 bits and so are known modulo
// 2^32 alone, several numbers modulo 2^32.
constexpr uint64_t kFieldPrime = (uint64_t{1} << 61) - 1;
template <size_t kWords>
struct IntegerFactor {
  std::array<uint32_t, kWords> words{};
  uint64_t field = 0;
};
constexpr size_t kWordsAtOnce = 8;
// Errors of 2^31 in two elements of a row have the sum 0 modulo 2^32 with every second vector.
constexpr int kPassesOfWords = 4;

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

template <size_t kWords>
void AddTerm(double value, const IntegerFactor<kWords>& factor, IntegerFactor<kWords>& sum) {
  const auto integer = static_cast<int64_t>(value);
  for (size_t i = 0; i < kWords; ++i) {
    sum.words[i] += static_cast<uint32_t>(integer) * factor.words[i];
  }
  if constexpr (kWords > 1) return;
  const uint64_t field = sum.field + FieldProduct(FieldOf(integer) % kFieldPrime, factor.field);
  sum.field = field >= kFieldPrime ? field - kFieldPrime : field;
}

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

// The sums of integers or bits, which are exact.
template <size_t kWords>
std::vector<IntegerFactor<kWords>> IntegerSums(const MatrixLayout& layout, const std::byte* matrix,
                                               const std::vector<IntegerFactor<kWords>>& factors,
                                               AbortFlag abort) {
  std::vector<IntegerFactor<kWords>> sums(static_cast<size_t>(layout.rows));
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

// The greatest magnitude of an integer type.
double MaxMagnitude(ElementType type) {
  const ElementFacts facts = FactsOf(type);
  return facts.is_signed ? static_cast<double>(int64_t{1} << (facts.bits - 1))
                         : static_cast<double>((int64_t{1} << facts.bits) - 1);
}

absl::Status Refuse(std::string_view got, std::string_view want) {
  return absl::UnimplementedError(Concat("verify.mode: got checksum with ", got, ", want ", want));
}

// The max relative error of one addition. Tensor cores truncate, and some chips add floats of at
// most 8 bits with 13 bits.
double UnitRoundoff(const Kernel& kernel) {
  switch (kernel.recipe.accumulation) {
    case ElementType::kF64: return 0x1p-53;
    case ElementType::kF16: return 0x1p-10;
    default: break;
  }
  if (kernel.instruction == nullptr) return 0x1p-24;
  return BitsOf(kernel.a) <= 8 ? 0x1p-13 : 0x1p-23;
}

double OutputUnitRoundoff(ElementType type) {
  return std::ldexp(1.0, -1 - FactsOf(type).format.fraction_bits);
}

// The random factors of D's columns: magnitudes from 1 to 2, so that no single error shrinks and no
// two equal ones cancel, with random signs.
std::vector<double> DrawFactors(int64_t count, Draw& draw) {
  std::uniform_real_distribution<double> magnitude(1, 2);
  std::vector<double> factors(static_cast<size_t>(count));
  for (double& factor : factors) factor = magnitude(draw) * ((draw() & 1) != 0 ? 1 : -1);
  return factors;
}

// One matrix of the batch of each operand, A expanded, and what the epilogue adds.
struct OneProduct {
  Problem problem;  // The problem of the whole batch, but with a dense A.
  int64_t batch = 0;
  bool is_transposed =
      false;  // It is the transpose of the checked product: B transposed times A transposed.
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  const std::byte* c = nullptr;
  const std::byte* d = nullptr;
  absl::Span<const std::byte> bias;
  absl::Span<const float> a_scale;
  absl::Span<const float> b_scale;
};

// `expanded` receives a sparse A's dense form, and must outlive the result.
OneProduct TakeOne(const CheckedProduct& product, int64_t batch, std::vector<std::byte>& expanded) {
  const Problem& problem = product.problem;
  OneProduct one = {
      .problem = problem,
      .batch = batch,
      .a = product.a.data() + batch * problem.a.batch_stride_bytes,
      .b = product.b.data() + batch * problem.b.batch_stride_bytes,
      .c = problem.has_c() ? product.c.data() + batch * problem.c.batch_stride_bytes : nullptr,
      .d = product.d.data() + batch * problem.d.batch_stride_bytes,
      .bias = product.bias,
      .a_scale = product.a_scale,
      .b_scale = product.b_scale};
  if (!problem.a.is_sparse()) return one;
  const SparseLayout layout = SparseLayoutOf("a", problem.a.type, problem.m, problem.k).value();
  expanded.resize(static_cast<size_t>(layout.dense_bytes));
  Expand(layout, one.a, expanded.data(), product.abort);
  one.a = expanded.data();
  one.problem.a = TightLayout("a", problem.a.type, Order::kRowMajor, problem.m, problem.k).value();
  return one;
}

OneProduct Turned(const OneProduct& one) {
  OneProduct turned = one;
  turned.problem = Transposed(one.problem);
  turned.is_transposed = true;
  std::swap(turned.a, turned.b);
  std::swap(turned.a_scale, turned.b_scale);
  return turned;
}

// Computes suspicious rows again, and counts.
class Suspects {
 public:
  Suspects(const CheckedProduct& product, CheckResult& result)
      : product_(product),
        result_(result),
        rows_(static_cast<size_t>(product.problem.m)),
        columns_(static_cast<size_t>(product.problem.n)) {
    std::iota(rows_.begin(), rows_.end(), int64_t{0});
    std::iota(columns_.begin(), columns_.end(), int64_t{0});
  }

  // A row of one matrix, or a column if the product is transposed.
  absl::Status Add(const OneProduct& one, int64_t line) {
    ++result_.suspicions;
    if (result_.end == CheckEnd::kWrong) return absl::OkStatus();
    if (result_.suspicions > kMaxSuspicions) {
      is_undecided_ = true;
      return absl::OkStatus();
    }
    const int64_t before = result_.elements_checked;
    const Indices lines = absl::MakeConstSpan(&line, 1);
    RETURN_IF_ERROR(one.is_transposed ? Recompute(product_, one.batch, rows_, lines, result_)
                                      : Recompute(product_, one.batch, lines, columns_, result_));
    if (result_.elements_checked == before) is_nonfinite_ = true;
    result_.cost += 1 / static_cast<double>(one.problem.m * one.problem.batch);
    return absl::OkStatus();
  }

  void AddNonFinite() { is_nonfinite_ = true; }

  // Completes the result after the last row.
  void End() {
    if (result_.end == CheckEnd::kWrong) return;
    if (is_undecided_ || is_nonfinite_) {
      result_.end = CheckEnd::kNotVerified;
      result_.reason = is_undecided_ ? "undecided" : "nonfinite";
      result_.miss_probability = 1;
    }
  }

 private:
  const CheckedProduct& product_;
  CheckResult& result_;
  std::vector<int64_t> rows_;
  std::vector<int64_t> columns_;
  bool is_undecided_ = false;
  bool is_nonfinite_ = false;
};

// Whether every sum of the problem fits 32 bits, by its types.
bool IsBelow32Bits(const Problem& problem) {
  const double most = MaxMagnitude(problem.a.type) * MaxMagnitude(problem.b.type);
  return most * static_cast<double>(problem.k) < 0x1p31;
}

// Marks the rows whose sums are wrong.
template <size_t kWords>
void MarkWrongRows(const CheckedProduct& product, const OneProduct& one, Draw& draw,
                   std::vector<bool>& is_wrong) {
  const Problem& problem = one.problem;
  std::vector<IntegerFactor<kWords>> factors(static_cast<size_t>(problem.n));
  for (IntegerFactor<kWords>& factor : factors) {
    for (uint32_t& word : factor.words) word = static_cast<uint32_t>(draw());
    factor.words[0] |= 1;
    factor.field = draw() % kFieldPrime;
  }
  const auto b = IntegerSums(problem.b, one.b, factors, product.abort);
  const auto want = IntegerSums(problem.a, one.a, b, product.abort);
  const auto got = IntegerSums(problem.d, one.d, factors, product.abort);
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i].words != got[i].words || want[i].field != got[i].field) is_wrong[i] = true;
  }
}

absl::Status CheckIntegers(const CheckedProduct& product, const OneProduct& one, Draw& draw,
                           Suspects& suspects) {
  std::vector<bool> is_wrong(static_cast<size_t>(one.problem.m));
  if (IsBelow32Bits(one.problem)) {
    MarkWrongRows<1>(product, one, draw, is_wrong);
  } else {
    for (int pass = 0; pass < kPassesOfWords; ++pass) {
      MarkWrongRows<kWordsAtOnce>(product, one, draw, is_wrong);
    }
  }
  if (IsSet(product.abort)) return AbortedLaunch();
  for (size_t i = 0; i < is_wrong.size(); ++i) {
    if (is_wrong[i]) RETURN_IF_ERROR(suspects.Add(one, static_cast<int64_t>(i)));
  }
  return absl::OkStatus();
}

double BiasAt(const OneProduct& product, int64_t index) {
  const ElementType type = product.problem.bias_type;
  return Decode(type, LoadBits(type, product.bias.data(), index));
}

absl::Status CheckFloats(const CheckedProduct& product, const OneProduct& one, Draw& draw,
                         Suspects& suspects, CheckResult& result) {
  const Problem& problem = one.problem;
  const std::vector<double> factors = DrawFactors(problem.n, draw);
  std::vector<double> scaled = factors;
  for (size_t j = 0; j < scaled.size(); ++j) scaled[j] *= ScaleAt(one.b_scale, j);
  // B r and the squares of its terms; then those of A (B r).
  const LineSums b = SumsOf(problem.b, one.b, scaled, SquaresOf(scaled), product.abort);
  const LineSums want = SumsOf(problem.a, one.a, b.sums, b.squares, product.abort);
  const LineSums got = SumsOf(problem.d, one.d, factors, SquaresOf(factors), product.abort);
  LineSums c;
  if (problem.has_c()) c = SumsOf(problem.c, one.c, factors, SquaresOf(factors), product.abort);
  if (IsSet(product.abort)) return AbortedLaunch();

  double columns_bias = 0;
  for (int64_t j = 0; problem.bias_axis == BiasAxis::kColumns && j < problem.n; ++j) {
    columns_bias += BiasAt(one, j) * factors[static_cast<size_t>(j)];
  }
  const double sum_of_factors = std::accumulate(factors.begin(), factors.end(), 0.0);
  const double steps = static_cast<double>(problem.k + 4);
  // The sums of this check also round, once per term.
  const double own = 0x1p-53 * std::sqrt(static_cast<double>(problem.k + problem.n));
  const double unit = UnitRoundoff(product.kernel) * std::sqrt(steps) + own;
  const double output = OutputUnitRoundoff(problem.d.type);
  const double epilogue =
      problem.is_plain()
          ? 0
          : (product.kernel.recipe.accumulation == ElementType::kF64 ? 0x1p-52 : 0x1p-23);
  // Rounding to a subnormal of D may lose this much of each element, however small it is.
  const FloatFormat format = FactsOf(problem.d.type).format;
  const double quantum = std::ldexp(1.0, 1 - format.bias - format.fraction_bits);
  for (int64_t row = 0; row < problem.m; ++row) {
    const auto i = static_cast<size_t>(row);
    const double factor = problem.alpha * ScaleAt(one.a_scale, i);
    const double bias =
        problem.bias_axis == BiasAxis::kRows ? BiasAt(one, row) * sum_of_factors : columns_bias;
    double expected = factor * want.sums[i] + bias;
    double magnitude = factor * factor * want.squares[i] + got.squares[i];
    if (problem.has_c()) {
      expected += problem.beta * c.sums[i];
      magnitude += problem.beta * problem.beta * c.squares[i];
    }
    if (!std::isfinite(expected) || !std::isfinite(want.squares[i])) {
      suspects.AddNonFinite();
      continue;
    }
    const double relative = unit * unit + epilogue * epilogue + 4 * own * own;
    const double variance = relative * magnitude + output * output * got.squares[i] +
                            4 * quantum * quantum * static_cast<double>(problem.n);
    const double bound = kDeviations * std::sqrt(variance);
    // A square of a wrong element may be infinite, and then no difference would be above it.
    if (!std::isfinite(bound) || !(std::fabs(got.sums[i] - expected) <= bound)) {
      RETURN_IF_ERROR(suspects.Add(one, row));
      continue;
    }
    // A factor is at least 1, and rounding hides at most as much as the bound.
    result.least_error = std::max(result.least_error, 2 * bound);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CanCheckSums(const Kernel& kernel, const Problem& problem) {
  RETURN_IF_ERROR(CanRecompute(kernel));
  if (!problem.has_product()) return Refuse("no product", "k above 0 and alpha other than 0");
  if (problem.activation != Activation::kNone) return Refuse("an activation", "none");
  if (problem.has_block_scales()) {
    return Refuse("factors of blocks", "none: sampled and duplicate check such products");
  }
  if (kernel.recipe.accumulation == ElementType::kS32) {
    if (!kernel.recipe.exact) return Refuse("a kernel that saturates", "sums modulo 2^32");
    if (!problem.is_plain() || problem.d.type != ElementType::kS32) {
      return Refuse("integers and an epilogue", "a D of s32 that is the product alone");
    }
    if (problem.bit_operation == BitOperation::kXor) return Refuse("xor", "and");
    return absl::OkStatus();
  }
  if (!IsFloat(problem.d.type) || BitsOf(problem.d.type) < 16) {
    return Refuse(Concat("a D of ", NameOf(problem.d.type)), "floats of at least 16 bits");
  }
  return absl::OkStatus();
}

int64_t SumBytes(const Problem& problem) {
  int64_t bytes = 96 * (problem.m + problem.n + problem.k) + RecomputeBytes(problem, 1, problem.n);
  if (problem.a.is_sparse()) {
    const auto layout = SparseLayoutOf("a", problem.a.type, problem.m, problem.k);
    bytes += layout.ok() ? layout->dense_bytes : 0;
  }
  return bytes;
}

int SumPasses(const Kernel& kernel, const Problem& problem) {
  if (kernel.recipe.accumulation != ElementType::kS32) return 2;
  return IsBelow32Bits(problem) ? 1 : kPassesOfWords;
}

double SumCost(const Kernel& kernel, const Problem& problem) {
  const auto m = static_cast<double>(problem.m);
  const auto n = static_cast<double>(problem.n);
  const auto k = static_cast<double>(problem.k);
  // k n, m k and m n multiplications over m n k.
  return SumPasses(kernel, problem) * (1 / m + 1 / n + 1 / k);
}

absl::StatusOr<CheckResult> CheckSums(const CheckedProduct& product, Draw& draw) {
  const Problem& problem = product.problem;
  CheckResult result;
  if (!problem.has_output()) return result;
  result.cost = SumCost(product.kernel, problem);
  const bool is_integer = product.kernel.recipe.accumulation == ElementType::kS32;
  Suspects suspects(product, result);
  try {
    for (int64_t batch = 0; batch < problem.batch; ++batch) {
      if (IsSet(product.abort)) return AbortedLaunch();
      std::vector<std::byte> expanded;
      const OneProduct one = TakeOne(product, batch, expanded);
      if (is_integer) {
        RETURN_IF_ERROR(CheckIntegers(product, one, draw, suspects));
        continue;
      }
      RETURN_IF_ERROR(CheckFloats(product, one, draw, suspects, result));
      RETURN_IF_ERROR(CheckFloats(product, Turned(one), draw, suspects, result));
    }
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("verify: no memory for the sums of rows and columns");
  }
  suspects.End();
  result.elements_checked = problem.m * problem.n * problem.batch;
  return result;
}

CheckResult CompareResults(const Problem& problem, absl::Span<const std::byte> d,
                           absl::Span<const std::byte> again) {
  CheckResult result;
  result.cost = 1;
  if (!problem.has_output()) return result;
  result.elements_checked = problem.m * problem.n * problem.batch;
  if (d.size() == again.size() && std::memcmp(d.data(), again.data(), d.size()) == 0) return result;
  for (int64_t batch = 0; batch < problem.batch; ++batch) {
    const int64_t offset = batch * problem.d.batch_stride_bytes;
    for (int64_t row = 0; row < problem.m; ++row) {
      for (int64_t column = 0; column < problem.n; ++column) {
        const uint64_t got = BitsAt(problem.d, d.data() + offset, row, column);
        const uint64_t want = BitsAt(problem.d, again.data() + offset, row, column);
        if (got == want) continue;
        ++result.wrong_elements;
        if (!result.wrong) result.wrong = WrongElement{batch, row, column, got, want};
      }
    }
  }
  if (result.wrong_elements > 0) result.end = CheckEnd::kWrong;
  return result;
}

}  // namespace gemmd::verify
