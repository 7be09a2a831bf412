// SPDX-License-Identifier: Apache-2.0
//
// Derivation of the bounds. u is the unit roundoff of a type, eta half its smallest subnormal.
//
// Accumulators. Let s = sum of a_p b_p over p = 1..k, computed in any order with or without fused
// multiply-adds. Every product takes part in at most k roundings of sums and one of its own, so
// |computed - s| <= gamma(k + 1) * sum |a_p b_p| with gamma(n) = n u / (1 - n u) (Higham, Accuracy
// and Stability of Numerical Algorithms, section 3.1), plus eta for each of at most k products that
// underflow (sums that underflow are exact). Where subnormals count as zero, an operand loses less
// than the smallest normal number t, so a product at most t * max(|a_p|, |b_p|) + t^2, and each of
// the at most 2 k results at most t. The reference itself adds in long double, u = 2^-64: k + 2 in
// place of k + 1 covers it.
//
// Factors of blocks. Each part of k is a sum of its own, rounded once more with its factors (in f64
// three times), and the sums of the parts are added: k roundings at most within parts and one for
// each part, so k + parts + 6 takes the place of k + 2, with eta for each part.
//
// Epilogue. A value x with error e, in the epilogue's type: multiplied by an exact c it has the
// error |c| e, plus u |c x| + eta for rounding; added to y with error f it has e + f, plus u |x +
// y| for rounding. An activation multiplies errors by at most 1.2, the largest slope among them
// (gelu 1.13, silu 1.10). In f64, exp and erfc magnify the rounding of an argument below 746 by
// less than 2048. In f32, activations are within 6 u |x|, as kernels/activation.h promises and
// activation_test.cc checks. Conversion to D adds half a step of D.
#include "tests/kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gemmd {
namespace {

struct Estimate {
  long double value = 0;
  long double error = 0;
};

struct Precision {
  long double unit_roundoff;
  long double eta;
  long double smallest_normal;
};

Precision PrecisionOf(ElementType type) {
  if (type == ElementType::kF32) return {0x1p-24L, 0x1p-150L, 0x1p-126L};
  return {0x1p-53L, 0x1p-1075L, 0x1p-1022L};
}

// The decoded operands: A by rows, B by columns, so that both run along k.
struct Decoded {
  std::vector<double> a;
  std::vector<double> b;
};

Decoded DecodeOperands(const Product& product, int64_t matrix) {
  const Problem& problem = product.problem;
  const MatrixView a = {problem.a, problem.batch, product.a.data()};
  const MatrixView b = {problem.b, problem.batch, product.b.data()};
  Decoded decoded;
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t p = 0; p < problem.k; ++p) decoded.a.push_back(a.value(matrix, i, p));
  }
  for (int64_t j = 0; j < problem.n; ++j) {
    for (int64_t p = 0; p < problem.k; ++p) decoded.b.push_back(b.value(matrix, p, j));
  }
  return decoded;
}

// The factor of an element, which is 1 without factors of blocks.
double FactorAt(const BlockScale* blocks, const std::vector<std::byte>& factors, int64_t extent,
                int64_t k, int64_t matrix, int64_t line, int64_t depth) {
  if (blocks == nullptr) return 1;
  const int64_t at = blocks->matrix_bytes(extent, k) * matrix + blocks->offset(line, depth, k);
  return DecodeFactor(blocks->type, factors.data() + at);
}

// Multiplies the operands by the factors of their blocks; the products are exact in f64.
void ApplyFactors(const Product& product, int64_t matrix, Decoded& decoded) {
  const Problem& problem = product.problem;
  const int64_t k = problem.k;
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t i = 0; i < problem.m; ++i) {
      decoded.a[static_cast<size_t>(i * k + p)] *=
          FactorAt(problem.blocks_of_a(), product.a_factors, problem.m, k, matrix, i, p);
    }
    for (int64_t j = 0; j < problem.n; ++j) {
      decoded.b[static_cast<size_t>(j * k + p)] *=
          FactorAt(problem.blocks_of_b(), product.b_factors, problem.n, k, matrix, j, p);
    }
  }
}

// The maximum number of parts into which factors divide k.
int64_t PartsOf(const Problem& problem) {
  int64_t parts = 0;
  for (const BlockScale* const blocks : {problem.blocks_of_a(), problem.blocks_of_b()}) {
    if (blocks != nullptr) parts += blocks->depth_blocks(problem.k);
  }
  return parts;
}

// Modulo 2^32, as the contract of s32 says.
int32_t SumOfIntegers(const Problem& problem, const double* a, const double* b) {
  uint64_t sum = 0;
  for (int64_t p = 0; p < problem.k; ++p) {
    const auto x = static_cast<int64_t>(a[p]);
    const auto y = static_cast<int64_t>(b[p]);
    const bool counts_differences = problem.bit_operation == BitOperation::kXor;
    sum += static_cast<uint64_t>(counts_differences ? x ^ y : x * y);
  }
  return static_cast<int32_t>(static_cast<uint32_t>(sum));
}

Estimate SumOfFloats(const Problem& problem, const Recipe& recipe, const double* a,
                     const double* b) {
  const Precision precision = PrecisionOf(recipe.accumulation);
  const int64_t parts = PartsOf(problem);
  const auto terms = static_cast<long double>(problem.k + (parts == 0 ? 2 : parts + 6));
  const long double gamma = terms * precision.unit_roundoff / (1 - terms * precision.unit_roundoff);
  long double sum = 0;
  long double magnitude = 0;
  long double flushed = 0;
  for (int64_t p = 0; p < problem.k; ++p) {
    const long double term = static_cast<long double>(a[p]) * b[p];
    sum += term;
    magnitude += std::fabs(term);
    if (recipe.flushes_subnormals) {
      const long double t = precision.smallest_normal;
      flushed += t * (std::max(std::fabs(a[p]), std::fabs(b[p])) + t + 2);
    }
  }
  const auto depth = static_cast<long double>(problem.k + parts);
  return {sum, gamma * magnitude + depth * precision.eta + flushed};
}

// The epilogue's steps on estimates.
class Steps {
 public:
  explicit Steps(ElementType accumulation)
      : is_single_(accumulation == ElementType::kF32), precision_(PrecisionOf(accumulation)) {}

  // A constant of another type, rounded to the epilogue's.
  long double Constant(double value) const {
    return is_single_ ? static_cast<float>(value) : value;
  }
  Estimate Rounded(Estimate x) const {
    const long double size = std::fabs(x.value) + x.error;
    return {x.value, x.error + precision_.unit_roundoff * size + precision_.eta};
  }
  Estimate Times(Estimate x, Estimate y) const {
    return Rounded({x.value * y.value, std::fabs(x.value) * y.error + std::fabs(y.value) * x.error +
                                           x.error * y.error});
  }
  Estimate Plus(Estimate x, Estimate y) const {
    return Rounded({x.value + y.value, x.error + y.error});
  }
  Estimate Activated(Activation activation, Estimate x) const {
    if (activation == Activation::kNone) return x;
    const long double y = Activate(activation, x.value);
    const bool is_curved = activation != Activation::kRelu;
    const long double evaluation = !is_curved   ? 0
                                   : is_single_ ? 6 * 0x1p-24L * std::fabs(x.value)
                                                : 2048 * 0x1p-53L * std::fabs(y);
    return Rounded({y, 1.2L * x.error + evaluation});
  }

 private:
  static long double Activate(Activation activation, long double x) {
    constexpr long double kPi = 3.14159265358979323846264338327950288L;
    switch (activation) {
      case Activation::kNone: return x;
      case Activation::kRelu: return std::isnan(x) ? x : std::max(x, 0.0L);
      case Activation::kGeluErf: return x / 2 * (1 + std::erf(x / std::sqrt(2.0L)));
      case Activation::kGeluTanh:
        return x / 2 * (1 + std::tanh(std::sqrt(2 / kPi) * (x + 0.044715L * x * x * x)));
      case Activation::kSilu: return x / (1 + std::exp(-x));
    }
    return x;
  }

  bool is_single_;
  Precision precision_;
};

// The position of an element, and what the epilogue adds to it.
struct Place {
  int64_t matrix;
  int64_t row;
  int64_t column;
};

double BiasAt(const Product& product, Place at) {
  const Problem& problem = product.problem;
  const int64_t index = problem.bias_axis == BiasAxis::kRows ? at.row : at.column;
  return Decode(problem.bias_type, LoadBits(problem.bias_type, product.bias.data(), index));
}

double ScaleAt(const std::vector<float>& scale, int64_t index) {
  if (scale.empty()) return 1;
  return scale[scale.size() == 1 ? 0 : static_cast<size_t>(index)];
}

Estimate Finish(const Product& product, const Steps& steps, Estimate x, Place at) {
  const Problem& problem = product.problem;
  if (problem.has_product() && problem.has_scales()) {
    const Estimate scale = steps.Times({ScaleAt(product.a_scale, at.row), 0},
                                       {ScaleAt(product.b_scale, at.column), 0});
    x = steps.Times(x, scale);
  }
  if (problem.has_product() && problem.alpha != 1) {
    x = steps.Times(x, {steps.Constant(problem.alpha), 0});
  }
  if (problem.has_c()) {
    const MatrixView c = {problem.c, problem.batch, product.c.data()};
    const double value = c.value(at.matrix, at.row, at.column);
    x = steps.Plus(x, steps.Times({steps.Constant(problem.beta), 0}, {steps.Constant(value), 0}));
  }
  if (problem.bias_axis != BiasAxis::kNone) {
    x = steps.Plus(x, {steps.Constant(BiasAt(product, at)), 0});
  }
  return steps.Activated(problem.activation, x);
}

// Half a step of a type at a magnitude.
long double HalfStep(ElementType type, long double magnitude) {
  if (IsInteger(type)) return 0.5L;
  const FloatFormat format = FactsOf(type).format;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude < 2^exponent
  const int lowest = 1 - format.bias;
  return std::ldexp(1.0L, std::max(exponent - 1, lowest) - format.fraction_bits - 1);
}

// The estimate after its conversion to D.
Estimate Converted(const Problem& problem, const Recipe& recipe, Estimate x) {
  const ElementType type = problem.d.type;
  if (!std::isfinite(x.value)) {
    return {Decode(type, Encode(type, static_cast<double>(x.value))), 0};
  }
  const bool saturates = IsInteger(type) || BitsOf(type) <= 8;
  if (saturates) {
    const auto infinity = std::numeric_limits<double>::infinity();
    x.value = std::clamp(x.value, static_cast<long double>(Decode(type, Encode(type, -infinity))),
                         static_cast<long double>(Decode(type, Encode(type, infinity))));
  }
  // Stored unchanged: accumulators of this type, and unmodified integers.
  if (type == recipe.accumulation && IsFloat(type)) return x;
  if (IsInteger(type) && x.error == 0 && x.value == std::floor(x.value)) return x;
  x.error += HalfStep(type, std::fabs(x.value) + x.error);
  return x;
}

}  // namespace

Reference MakeReference(const Product& product, const Recipe& recipe) {
  const Problem& problem = product.problem;
  const Steps steps(recipe.accumulation);
  Reference reference;
  for (int64_t matrix = 0; matrix < problem.batch; ++matrix) {
    Decoded operands;
    if (problem.has_product()) operands = DecodeOperands(product, matrix);
    if (problem.has_product() && problem.has_block_scales()) {
      ApplyFactors(product, matrix, operands);
    }
    for (int64_t i = 0; i < problem.m; ++i) {
      for (int64_t j = 0; j < problem.n; ++j) {
        Estimate x;
        const double* a = operands.a.data() + i * problem.k;
        const double* b = operands.b.data() + j * problem.k;
        if (problem.has_product()) {
          x = recipe.exact ? Estimate{static_cast<long double>(SumOfIntegers(problem, a, b)), 0}
                           : SumOfFloats(problem, recipe, a, b);
        }
        x = Converted(problem, recipe, Finish(product, steps, x, {matrix, i, j}));
        reference.want.push_back(static_cast<double>(x.value));
        // Rounding the reference itself to f64 changes it by less than its last bit.
        const long double slack = recipe.exact && x.error == 0 ? 0 : std::fabs(x.value) * 0x1p-53L;
        reference.bound.push_back(static_cast<double>(x.error + slack));
      }
    }
  }
  return reference;
}

std::vector<int32_t> MakeExactReference(const Product& product) {
  const Problem& problem = product.problem;
  std::vector<int32_t> want;
  for (int64_t matrix = 0; matrix < problem.batch; ++matrix) {
    Decoded operands;
    if (problem.has_product()) operands = DecodeOperands(product, matrix);
    for (int64_t i = 0; i < problem.m; ++i) {
      for (int64_t j = 0; j < problem.n; ++j) {
        want.push_back(problem.has_product()
                           ? SumOfIntegers(problem, operands.a.data() + i * problem.k,
                                           operands.b.data() + j * problem.k)
                           : 0);
      }
    }
  }
  return want;
}

}  // namespace gemmd
