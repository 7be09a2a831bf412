// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "client/matrix/dot_products.h"

namespace gemmd {
namespace {

constexpr double kF64Roundoff = 0x1p-53;
constexpr double kNarrowRoundoff = 0x1p-12;
constexpr int64_t kPromotionK = 128;

// The arithmetic of one type, as far as bounds ask.
struct Precision {
  double roundoff;  // Half the distance of neighbours, relative.
  double tiny;      // What one operation may lose near zero, where small results may count as zero.
  double largest;   // Largest finite value.
};

Precision PrecisionOf(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_F64:
    case v1::ELEMENT_TYPE_S32: return {kF64Roundoff, 0x1p-1022, std::numeric_limits<double>::max()};
    case v1::ELEMENT_TYPE_F16: return {0x1p-11, 0x1p-25, 65504};
    default: return {0x1p-24, 0x1p-126, std::numeric_limits<float>::max()};
  }
}

// Multiplies and adds with the epilogue's rounding, keeping the bound.
class Epilogue {
 public:
  Epilogue(const Precision& precision, ReferenceElement element)
      : precision_(precision), element_(element) {}

  const ReferenceElement& element() const { return element_; }

  // A factor that may itself have been rounded `roundings` times.
  void Multiply(double factor, int roundings) {
    element_.value *= factor;
    element_.error = element_.error * std::fabs(factor);
    Round(roundings + 1);
  }

  // Adds factor * term, after both were rounded to the epilogue's type.
  void AddProduct(double factor, double term) {
    const double product = factor * term;
    element_.value += product;
    element_.error += 2 * roundoff() * std::fabs(product) + precision_.tiny;
    Round(1);
  }

  void Apply(v1::Activation activation) {
    double& x = element_.value;
    switch (activation) {
      case v1::ACTIVATION_RELU:
        x = x < 0 ? 0 : x;  // NaN stays.
        return;
      case v1::ACTIVATION_GELU_ERF:
        return ApplySmooth(x / 2 * (1 + std::erf(x / std::numbers::sqrt2)));
      case v1::ACTIVATION_GELU_TANH: {
        const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
        return ApplySmooth(x / 2 * (1 + std::tanh(inner)));
      }
      case v1::ACTIVATION_SILU: return ApplySmooth(x / (1 + std::exp(-x)));
      default: return;
    }
  }

 private:
  double roundoff() const { return precision_.roundoff + kF64Roundoff; }

  void Round(int count) {
    element_.error +=
        count * roundoff() * (std::fabs(element_.value) + element_.error) + precision_.tiny;
    CheckRange();
  }

  // The slopes of gelu and silu stay below 1.13; their evaluation loses a few roundings of x, most
  // of it where 1 + erf(x) cancels.
  void ApplySmooth(double result) {
    constexpr double kSteepest = 1.13;
    constexpr int kRoundings = 16;
    const double x = element_.value;
    if (x == -std::numeric_limits<double>::infinity()) element_.is_decidable = false;  // 0 or NaN.
    element_.value = result;
    if (!std::isfinite(x)) return;
    element_.error =
        kSteepest * element_.error + kRoundings * roundoff() * std::fabs(x) + precision_.tiny;
  }

  void CheckRange() {
    const bool is_safe = std::fabs(element_.value) + element_.error < precision_.largest;
    if (std::isfinite(element_.value) && !is_safe) element_.is_decidable = false;
  }

  Precision precision_;
  ReferenceElement element_;
};

// The accumulator that a machine of `precision` gets from the products, before the epilogue, if it
// sums up `narrow_depth` of them at a time in 13 fraction bits.
ReferenceElement Accumulated(const DotProduct& dot, int64_t k, int64_t narrow_depth,
                             const Precision& precision) {
  const double count = static_cast<double>(k);
  const double narrow = static_cast<double>(narrow_depth) * kNarrowRoundoff;
  const double gamma =
      count * precision.roundoff / (1 - count * precision.roundoff) + narrow / (1 - narrow);
  const double f64_gamma = count * kF64Roundoff / (1 - count * kF64Roundoff);
  ReferenceElement element;
  element.is_decidable =
      gamma >= 0 && narrow < 1 && dot.magnitude * (1 + gamma) < precision.largest;
  if (dot.non_finite != 0 || std::isnan(dot.non_finite)) {
    element.value = dot.non_finite;
    return element;
  }
  element.value = dot.sum;
  element.error = (gamma + f64_gamma) * dot.magnitude + dot.flushable + count * precision.tiny;
  return element;
}

// An exact sum modulo 2^32, as a signed number. Sums of products of 8-bit numbers are far below
// 2^53.
double Wrapped(double sum) {
  return static_cast<double>(
      static_cast<int32_t>(static_cast<uint32_t>(static_cast<int64_t>(sum))));
}

double ScaleAt(const v1::Operand& operand, int64_t index) {
  const auto& values = operand.scale().values();
  return values.empty() ? 1.0 : values[values.size() == 1 ? 0 : static_cast<int>(index)];
}

v1::ElementType OrElse(v1::ElementType type, v1::ElementType otherwise) {
  return type != v1::ELEMENT_TYPE_UNSPECIFIED ? type : otherwise;
}

}  // namespace

v1::ElementType DefaultAccumulationType(v1::ElementType a) {
  switch (a) {
    case v1::ELEMENT_TYPE_F64: return v1::ELEMENT_TYPE_F64;
    case v1::ELEMENT_TYPE_S8:
    case v1::ELEMENT_TYPE_U8:
    case v1::ELEMENT_TYPE_S4:
    case v1::ELEMENT_TYPE_U4:
    case v1::ELEMENT_TYPE_B1:
    case v1::ELEMENT_TYPE_S32: return v1::ELEMENT_TYPE_S32;
    default: return v1::ELEMENT_TYPE_F32;
  }
}

Summation SummationOn(absl::string_view device) {
  return device == "cpu" ? Summation::kOfType : Summation::kOfTensorCore;
}

Reference::Reference(const v1::MultiplyRequest& request, Summation summation)
    : request_(request),
      summation_(summation),
      accumulation_type_(
          OrElse(request.accumulation_type(), DefaultAccumulationType(request.a().type()))),
      reads_product_(request.k() > 0 && (!request.has_alpha() || request.alpha() != 0)),
      a_(request.a(), request.a().type(), request.m(), request.k()),
      b_(request.b(), request.b().type(), request.k(), request.n()),
      a_factors_(request.a().scale().blocks(), request.m(), request.k()),
      b_factors_(request.b().scale().blocks(), request.n(), request.k()) {
  const v1::ElementType output_type = OrElse(request.d().type(), accumulation_type_);
  if (request.has_c())
    c_.emplace(request.c(), OrElse(request.c().type(), output_type), request.m(), request.n());
  if (request.has_bias()) bias_.emplace(request.bias(), OrElse(request.bias().type(), output_type));
}

std::vector<ReferenceElement> Reference::Rows(int64_t batch,
                                              const std::vector<int64_t>& rows) const {
  const bool is_bits = request_.a().type() == v1::ELEMENT_TYPE_B1;
  const int64_t n = request_.n();
  const DotProductInput input = {a_,         b_,
                                 a_factors_, b_factors_,
                                 n,          reads_product_ ? request_.k() : 0,
                                 is_bits,    request_.bit_operation()};
  const std::vector<DotProduct> dots = DotProducts(input, batch, rows);
  std::vector<ReferenceElement> elements;
  elements.reserve(dots.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const DotProduct& dot = dots[i * static_cast<size_t>(n) + static_cast<size_t>(j)];
      elements.push_back(Finish(dot, {batch, rows[i], j}));
    }
  }
  return elements;
}

int64_t Reference::NarrowDepth() const {
  const auto is_fp8 = [](v1::ElementType type) {
    return type == v1::ELEMENT_TYPE_E4M3 || type == v1::ELEMENT_TYPE_E5M2;
  };
  const bool is_narrow = summation_ == Summation::kOfTensorCore && is_fp8(request_.a().type()) &&
                         is_fp8(request_.b().type());
  if (!is_narrow) return 0;
  // A kernel that is named may have no promotion.
  const bool may_be_all = request_.fast_accumulation() || !request_.kernel().empty();
  return may_be_all ? request_.k() : std::min(request_.k(), kPromotionK);
}

ReferenceElement Reference::Finish(const DotProduct& dot, const Position& at) const {
  const bool is_exact = accumulation_type_ == v1::ELEMENT_TYPE_S32;
  const bool is_wide = is_exact || accumulation_type_ == v1::ELEMENT_TYPE_F64;
  ReferenceElement accumulated;
  if (is_exact) {
    accumulated.value = Wrapped(dot.sum);
  } else if (reads_product_) {
    const bool has_blocks = request_.a().scale().has_blocks() || request_.b().scale().has_blocks();
    const int64_t roundings = has_blocks ? 2 * request_.k() + 4 : request_.k();
    accumulated = Accumulated(dot, roundings, NarrowDepth(), PrecisionOf(accumulation_type_));
  }
  const auto narrowed = [&](double scalar) {
    return is_wide ? scalar : static_cast<float>(scalar);
  };
  Epilogue epilogue(PrecisionOf(is_wide ? v1::ELEMENT_TYPE_F64 : v1::ELEMENT_TYPE_F32),
                    accumulated);
  if (request_.a().scale().values_size() + request_.b().scale().values_size() > 0) {
    epilogue.Multiply(ScaleAt(request_.a(), at.row) * ScaleAt(request_.b(), at.column), 1);
  }
  if (request_.has_alpha()) epilogue.Multiply(narrowed(request_.alpha()), 0);
  if (c_.has_value())
    epilogue.AddProduct(narrowed(request_.beta()), c_->At(at.batch, at.row, at.column));
  if (bias_.has_value()) {
    const bool along_rows = request_.bias().axis() == v1::BIAS_AXIS_ROWS;
    epilogue.AddProduct(1, bias_->At(0, 0, along_rows ? at.row : at.column));
  }
  epilogue.Apply(request_.activation());
  return epilogue.element();
}

}  // namespace gemmd
