// SPDX-License-Identifier: Apache-2.0
#include "kernels/verify/checksum.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
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

// Elements that a slice has time for.
constexpr int64_t kSliceElements = int64_t{1} << 23;

// Reads a matrix line by line, a part in each slice.
class LineReader {
 public:
  // Calls `take(line, values)` with the elements of each next line as f64, until `left` elements
  // were read, which it subtracts, or the flag is set. Returns whether the last line was read; the
  // next call then begins with the first line again.
  template <typename Take>
  bool Continue(const MatrixLayout& layout, const std::byte* matrix, AbortFlag abort, int64_t& left,
                const Take& take) {
    constexpr int64_t kOfLine = 16;  // What else a line takes.
    const int64_t length = layout.line_length();
    values_.resize(static_cast<size_t>(length));
    for (; next_ < layout.lines(); ++next_) {
      if (left <= 0 || IsSet(abort)) return false;
      DecodeLine(layout.type, matrix + next_ * layout.line_stride_bytes(), length, values_.data());
      take(static_cast<size_t>(next_), values_);
      left -= length + kOfLine;
    }
    next_ = 0;
    return true;
  }

 private:
  int64_t next_ = 0;
  std::vector<double> values_;
};

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

// What each element of a row is multiplied by.
struct Factors {
  explicit Factors(std::vector<double> of) : values(std::move(of)) {
    squares.reserve(values.size());
    for (const double value : values) squares.push_back(value * value);
  }

  std::vector<double> values;
  std::vector<double> squares;
};

// Returns whether the sums are complete.
bool AddSums(const MatrixLayout& layout, const std::byte* matrix,
             const std::vector<double>& factors, const std::vector<double>& weights,
             AbortFlag abort, LineReader& reader, int64_t& left, LineSums& result) {
  result.sums.resize(static_cast<size_t>(layout.rows));
  result.squares.resize(static_cast<size_t>(layout.rows));
  const bool is_row_major = layout.order == Order::kRowMajor;
  const auto add = [&](size_t line, const std::vector<double>& values) {
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
  };
  return reader.Continue(layout, matrix, abort, left, add);
}

// The sums of integers or bits, which are exact. Returns whether they are complete.
template <size_t kWords>
bool AddSums(const MatrixLayout& layout, const std::byte* matrix,
             const std::vector<IntegerFactor<kWords>>& factors, AbortFlag abort, LineReader& reader,
             int64_t& left, std::vector<IntegerFactor<kWords>>& sums) {
  sums.resize(static_cast<size_t>(layout.rows));
  const bool is_row_major = layout.order == Order::kRowMajor;
  const auto add = [&](size_t line, const std::vector<double>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (is_row_major) {
        AddTerm(values[i], factors[i], sums[line]);
      } else {
        AddTerm(values[i], factors[line], sums[i]);
      }
    }
  };
  return reader.Continue(layout, matrix, abort, left, add);
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

// The rows, and columns if the product is transposed, whose sums are suspicious: counts them, and
// computes the first ones again.
class Suspects {
 public:
  Suspects(const CheckedProduct& product, CheckResult& result)
      : product_(product), result_(result) {}

  void Add(const OneProduct& one, int64_t line) {
    if (++result_.suspicions <= kMaxSuspicions) {
      lines_.push_back({one.batch, line, one.is_transposed});
    } else {
      is_undecided_ = true;
    }
  }

  void AddNonFinite() { is_nonfinite_ = true; }

  // Computes lines again until one is wrong. Returns whether the check has ended. Errors: as
  // Recompute.
  absl::StatusOr<bool> Continue() {
    int64_t left = Recomputation::SliceOf(product_.kernel);
    for (; next_ < lines_.size() && result_.end != CheckEnd::kWrong; ++next_) {
      const Line& line = lines_[next_];
      if (!again_) Begin(line);
      ASSIGN_OR_RETURN(const bool has_ended, again_->Continue(left, result_));
      if (!has_ended) return false;
      again_.reset();
      if (result_.elements_checked == checked_before_) is_nonfinite_ = true;
      const Problem& problem = product_.problem;
      result_.cost +=
          1 / static_cast<double>((line.is_column ? problem.n : problem.m) * problem.batch);
    }
    if (result_.end != CheckEnd::kWrong && (is_undecided_ || is_nonfinite_)) {
      result_.end = CheckEnd::kNotVerified;
      result_.reason = is_undecided_ ? "undecided" : "nonfinite";
      result_.miss_probability = 1;
    }
    return true;
  }

 private:
  struct Line {
    int64_t batch = 0;
    int64_t index = 0;
    bool is_column = false;
  };

  void Begin(const Line& line) {
    const Problem& problem = product_.problem;
    std::vector<int64_t> all(static_cast<size_t>(line.is_column ? problem.m : problem.n));
    std::iota(all.begin(), all.end(), int64_t{0});
    std::vector<int64_t> one = {line.index};
    if (line.is_column) std::swap(all, one);
    again_.emplace(product_, line.batch, std::move(one), std::move(all));
    checked_before_ = result_.elements_checked;
  }

  const CheckedProduct& product_;
  CheckResult& result_;
  std::vector<Line> lines_;
  size_t next_ = 0;
  std::optional<Recomputation> again_;  // Of the next line, once it has begun.
  int64_t checked_before_ = 0;
  bool is_undecided_ = false;
  bool is_nonfinite_ = false;
};

// The sums of one matrix of the batch.
class MatrixSums {
 public:
  virtual ~MatrixSums() = default;
  // Returns whether the sums are complete.
  virtual bool Continue(AbortFlag abort, int64_t& left) = 0;
  // Compares complete sums.
  virtual void Judge(Suspects& suspects, CheckResult& result) const = 0;
};

// Whether every sum of the problem fits 32 bits, by its types.
bool IsBelow32Bits(const Problem& problem) {
  const double max_product = MaxMagnitude(problem.a.type) * MaxMagnitude(problem.b.type);
  return max_product * static_cast<double>(problem.k) < 0x1p31;
}

template <size_t kWords>
class IntegerSums : public MatrixSums {
 public:
  IntegerSums(const OneProduct& one, int passes, Draw& draw)
      : one_(one), passes_(passes), draw_(draw), is_wrong_(static_cast<size_t>(one.problem.m)) {}

  bool Continue(AbortFlag abort, int64_t& left) override {
    const Problem& problem = one_.problem;
    for (; passes_ > 0; --passes_) {
      if (factors_.empty()) DrawFactors();
      if (stage_ == 0 && !AddSums(problem.b, one_.b, factors_, abort, reader_, left, b_)) {
        return false;
      }
      stage_ = std::max(stage_, 1);
      if (stage_ == 1 && !AddSums(problem.a, one_.a, b_, abort, reader_, left, want_)) {
        return false;
      }
      stage_ = 2;
      if (!AddSums(problem.d, one_.d, factors_, abort, reader_, left, got_)) return false;
      for (size_t i = 0; i < want_.size(); ++i) {
        if (want_[i].words != got_[i].words || want_[i].field != got_[i].field) is_wrong_[i] = true;
      }
      stage_ = 0;
      for (std::vector<Factor>* const used : {&factors_, &b_, &want_, &got_}) used->clear();
    }
    return true;
  }

  void Judge(Suspects& suspects, CheckResult& /*result*/) const override {
    for (size_t i = 0; i < is_wrong_.size(); ++i) {
      if (is_wrong_[i]) suspects.Add(one_, static_cast<int64_t>(i));
    }
  }

 private:
  using Factor = IntegerFactor<kWords>;

  void DrawFactors() {
    factors_.resize(static_cast<size_t>(one_.problem.n));
    for (Factor& factor : factors_) {
      for (uint32_t& word : factor.words) word = static_cast<uint32_t>(draw_());
      factor.words[0] |= 1;
      factor.field = draw_() % kFieldPrime;
    }
  }

  const OneProduct one_;
  int passes_;
  Draw& draw_;
  int stage_ = 0;  // Whether the next sums are of B, A or D.
  LineReader reader_;
  std::vector<Factor> factors_;
  std::vector<Factor> b_;
  std::vector<Factor> want_;
  std::vector<Factor> got_;
  std::vector<bool> is_wrong_;
};

double BiasAt(const OneProduct& product, int64_t index) {
  const ElementType type = product.problem.bias_type;
  return Decode(type, LoadBits(type, product.bias.data(), index));
}

std::vector<double> Scaled(std::vector<double> factors, absl::Span<const float> scales) {
  for (size_t j = 0; j < factors.size(); ++j) factors[j] *= ScaleAt(scales, j);
  return factors;
}

class FloatSums : public MatrixSums {
 public:
  FloatSums(const Kernel& kernel, const OneProduct& one, Draw& draw)
      : kernel_(kernel),
        one_(one),
        factors_(DrawFactors(one.problem.n, draw)),
        scaled_(Scaled(factors_.values, one.b_scale)) {}

  // B r and the squares of its terms; then those of A (B r), of D r and of C r.
  bool Continue(AbortFlag abort, int64_t& left) override {
    const Problem& problem = one_.problem;
    const auto add = [&](const MatrixLayout& layout, const std::byte* matrix,
                         const std::vector<double>& values, const std::vector<double>& squares,
                         LineSums& sums) {
      const bool has_ended = AddSums(layout, matrix, values, squares, abort, reader_, left, sums);
      if (has_ended) ++stage_;
      return has_ended;
    };
    if (stage_ == 0 && !add(problem.b, one_.b, scaled_.values, scaled_.squares, b_)) return false;
    if (stage_ == 1 && !add(problem.a, one_.a, b_.sums, b_.squares, want_)) return false;
    if (stage_ == 2 && !add(problem.d, one_.d, factors_.values, factors_.squares, got_)) {
      return false;
    }
    return !problem.has_c() || stage_ > 3 ||
           add(problem.c, one_.c, factors_.values, factors_.squares, c_);
  }

  void Judge(Suspects& suspects, CheckResult& result) const override;

 private:
  const Kernel& kernel_;
  const OneProduct one_;
  const Factors factors_;
  const Factors scaled_;
  int stage_ = 0;
  LineReader reader_;
  LineSums b_;
  LineSums want_;
  LineSums got_;
  LineSums c_;
};

void FloatSums::Judge(Suspects& suspects, CheckResult& result) const {
  const Problem& problem = one_.problem;
  double columns_bias = 0;
  for (int64_t j = 0; problem.bias_axis == BiasAxis::kColumns && j < problem.n; ++j) {
    columns_bias += BiasAt(one_, j) * factors_.values[static_cast<size_t>(j)];
  }
  const double sum_of_factors =
      std::accumulate(factors_.values.begin(), factors_.values.end(), 0.0);
  const double steps = static_cast<double>(problem.k + 4);
  // The sums of this check also round, once per term.
  const double own = 0x1p-53 * std::sqrt(static_cast<double>(problem.k + problem.n));
  const double unit = UnitRoundoff(kernel_) * std::sqrt(steps) + own;
  const double output = OutputUnitRoundoff(problem.d.type);
  const double epilogue =
      problem.is_plain() ? 0
                         : (kernel_.recipe.accumulation == ElementType::kF64 ? 0x1p-52 : 0x1p-23);
  // Rounding to a subnormal of D may lose this much of each element, however small it is.
  const FloatFormat format = FactsOf(problem.d.type).format;
  const double quantum = std::ldexp(1.0, 1 - format.bias - format.fraction_bits);
  for (int64_t row = 0; row < problem.m; ++row) {
    const auto i = static_cast<size_t>(row);
    const double factor = problem.alpha * ScaleAt(one_.a_scale, i);
    const double bias =
        problem.bias_axis == BiasAxis::kRows ? BiasAt(one_, row) * sum_of_factors : columns_bias;
    double expected = factor * want_.sums[i] + bias;
    double magnitude = factor * factor * want_.squares[i] + got_.squares[i];
    if (problem.has_c()) {
      expected += problem.beta * c_.sums[i];
      magnitude += problem.beta * problem.beta * c_.squares[i];
    }
    if (!std::isfinite(expected) || !std::isfinite(want_.squares[i])) {
      suspects.AddNonFinite();
      continue;
    }
    const double relative = unit * unit + epilogue * epilogue + 4 * own * own;
    const double variance = relative * magnitude + output * output * got_.squares[i] +
                            4 * quantum * quantum * static_cast<double>(problem.n);
    const double bound = kDeviations * std::sqrt(variance);
    // A square of a wrong element may be infinite, and then no difference would be above it.
    if (!std::isfinite(bound) || !(std::fabs(got_.sums[i] - expected) <= bound)) {
      suspects.Add(one_, row);
      continue;
    }
    // A factor is at least 1, and rounding hides at most as much as the bound.
    result.least_error = std::max(result.least_error, 2 * bound);
  }
}

class SumCheck : public SlicedCheck {
 public:
  SumCheck(const CheckedProduct& product, Draw& draw)
      : product_(product), draw_(draw), suspects_(product_, result_) {
    if (product.problem.has_output()) result_.cost = SumCost(product.kernel, product.problem);
  }

  absl::StatusOr<bool> Continue() override {
    if (!product_.problem.has_output()) return true;
    return OrNoMemory("verify: no memory for the sums of rows and columns",
                      [this] { return ContinueSums(); });
  }

 private:
  absl::StatusOr<bool> ContinueSums() {
    const Problem& problem = product_.problem;
    const bool is_integer = product_.kernel.recipe.accumulation == ElementType::kS32;
    const int64_t steps = problem.batch * (is_integer ? 1 : 2);
    int64_t left = kSliceElements;
    for (; step_ < steps; ++step_) {
      if (sums_ == nullptr) Begin(is_integer);
      const bool has_ended = sums_->Continue(product_.abort, left);
      if (IsSet(product_.abort)) return AbortedLaunch();
      if (!has_ended) return false;
      sums_->Judge(suspects_, result_);
      sums_ = nullptr;
    }
    ASSIGN_OR_RETURN(const bool has_ended, suspects_.Continue());
    if (has_ended) result_.elements_checked = problem.m * problem.n * problem.batch;
    return has_ended;
  }

  // The sums of the next matrix: of its rows or, in every second step of floats, of its columns.
  void Begin(bool is_integer) {
    if (is_integer) {
      const OneProduct one = TakeOne(product_, step_, expanded_);
      const int passes = SumPasses(product_.kernel, product_.problem);
      if (passes == 1) {
        sums_ = std::make_unique<IntegerSums<1>>(one, passes, draw_);
      } else {
        sums_ = std::make_unique<IntegerSums<kWordsAtOnce>>(one, passes, draw_);
      }
      return;
    }
    if (step_ % 2 == 0) {
      rows_ = TakeOne(product_, step_ / 2, expanded_);
      sums_ = std::make_unique<FloatSums>(product_.kernel, rows_, draw_);
    } else {
      sums_ = std::make_unique<FloatSums>(product_.kernel, Turned(rows_), draw_);
    }
  }

  const CheckedProduct product_;
  Draw& draw_;
  Suspects suspects_;
  int64_t step_ = 0;
  std::vector<std::byte> expanded_;  // A sparse A.
  OneProduct rows_;
  std::unique_ptr<MatrixSums> sums_;  // Of this step; null before it begins.
};

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

std::unique_ptr<SlicedCheck> StartSums(const CheckedProduct& product, Draw& draw) {
  return std::make_unique<SumCheck>(product, draw);
}

absl::StatusOr<CheckResult> CheckSums(const CheckedProduct& product, Draw& draw) {
  return Complete(StartSums(product, draw));
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
