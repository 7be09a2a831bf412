// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/verify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/operand_size.h"
#include "client/sparse_operand.h"
#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"
#include "kernels/matrix/status.h"

namespace gemmd {

MatrixReader::MatrixReader(const v1::Operand& operand, v1::ElementType type, int64_t rows,
                           int64_t columns)
    : type_(type),
      data_(operand.data()),
      by_columns_((operand.order() == v1::ORDER_COLUMN_MAJOR) != operand.transpose()) {
  const int64_t length = by_columns_ ? rows : columns;
  const int64_t lines = by_columns_ ? columns : rows;
  Prepare(operand.leading_dimension() != 0 ? operand.leading_dimension() : length);
  matrix_stride_bytes_ = operand.has_batch_stride()
                             ? operand.batch_stride() * ElementBits(type_) / 8
                             : lines * line_stride_bytes_;
  if (operand.sparsity() == v1::SPARSITY_NONE) return;
  expanded_ = std::make_shared<const std::string>(ExpandOperand(operand, rows, columns));
  data_ = *expanded_;
}

MatrixReader::MatrixReader(const v1::Matrix& matrix)
    : type_(matrix.type()),
      data_(matrix.data()),
      by_columns_(matrix.order() == v1::ORDER_COLUMN_MAJOR),
      matrix_stride_bytes_(matrix.batch_stride()) {
  Prepare(matrix.leading_dimension());
}

MatrixReader::MatrixReader(const v1::Bias& bias, v1::ElementType type)
    : type_(type), data_(bias.data()), by_columns_(false) {
  Prepare(0);
}

void MatrixReader::Prepare(int64_t leading_dimension) {
  const int bits = ElementBits(type_);
  line_stride_bytes_ = (leading_dimension * bits + 7) / 8;
  if (bits > 16) return;
  for (uint64_t pattern = 0; pattern < uint64_t{1} << bits; ++pattern) {
    values_.push_back(ElementValue(type_, pattern));
  }
}

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

BlockScale BlocksOf(const v1::BlockScale& blocks) {
  FactorType type = FactorType::kF32;
  if (blocks.type() == v1::FACTOR_TYPE_UE8M0) type = FactorType::kUe8m0;
  if (blocks.type() == v1::FACTOR_TYPE_UE4M3) type = FactorType::kUe4m3;
  return {.type = type,
          .lines = blocks.rows_per_block(),
          .depth = blocks.k_per_block(),
          .per_matrix = blocks.per_matrix()};
}

}  // namespace

BlockFactors::BlockFactors(const v1::BlockScale& blocks, int64_t lines, int64_t k)
    : factors_(blocks.factors()),
      has_factors_(blocks.type() != v1::FACTOR_TYPE_UNSPECIFIED),
      blocks_(BlocksOf(blocks)),
      lines_(lines),
      k_(k) {}

double BlockFactors::At(int64_t batch, int64_t line, int64_t k) const {
  if (!has_factors_) return 1;
  if (blocks_.lines < 1 || blocks_.depth < 1) return kNan;
  const auto at =
      static_cast<size_t>(batch * blocks_.matrix_bytes(lines_, k_) + blocks_.offset(line, k, k_));
  if (at + static_cast<size_t>(BytesOf(blocks_.type)) > factors_.size()) return kNan;
  return DecodeFactor(blocks_.type, reinterpret_cast<const std::byte*>(factors_.data() + at));
}

namespace {

// Whether a value is below the normal range of f32, where a library may flush operands to zero.
bool IsTiny(double value) { return value != 0 && std::fabs(value) < 0x1p-126; }

// Whether products with this factor need no special treatment.
bool IsPlain(double value) {
  return std::isfinite(value) && !IsTiny(value) && std::fabs(value) < 0x1p500;
}

void AddBits(v1::BitOperation operation, double a, double b, DotProduct& dot) {
  dot.sum += operation == v1::BIT_OPERATION_XOR ? a + b - 2 * a * b : a * b;
}

constexpr int64_t kPromotionK = 128;

Activation ActivationOf(v1::Activation activation) {
  switch (activation) {
    case v1::ACTIVATION_RELU: return Activation::kRelu;
    case v1::ACTIVATION_GELU_ERF: return Activation::kGeluErf;
    case v1::ACTIVATION_GELU_TANH: return Activation::kGeluTanh;
    case v1::ACTIVATION_SILU: return Activation::kSilu;
    default: return Activation::kNone;
  }
}

double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x < 0 ? 0 : x;  // NaN stays.
    case Activation::kGeluErf: return x / 2 * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::kGeluTanh: {
      const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      return x / 2 * (1 + std::tanh(inner));
    }
    case Activation::kSilu: return x / (1 + std::exp(-x));
  }
  return x;
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

bool IsHalf(v1::ElementType type) {
  return type == v1::ELEMENT_TYPE_F16 || type == v1::ELEMENT_TYPE_BF16;
}

v1::ElementType OrElse(v1::ElementType type, v1::ElementType otherwise) {
  return type != v1::ELEMENT_TYPE_UNSPECIFIED ? type : otherwise;
}

}  // namespace

v1::ElementType DefaultAccumulationType(v1::ElementType a, v1::ElementType b) {
  if (IsHalf(b)) return v1::ELEMENT_TYPE_F32;  // An integer A is dequantized.
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
      accumulation_type_(OrElse(request.accumulation_type(),
                                DefaultAccumulationType(request.a().type(), request.b().type()))),
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

namespace {

// An element times its factor. If the other operand is a 16-bit float, the result is rounded to
// f32, then to that type.
double Dequantized(v1::ElementType other, double element, double factor) {
  const double value = element * factor;
  return IsHalf(other) && factor != 1 ? RoundToElement(other, static_cast<float>(value)) : value;
}

}  // namespace

std::vector<DotProduct> Reference::DotProducts(int64_t batch,
                                               const std::vector<int64_t>& rows) const {
  const bool is_bits = request_.a().type() == v1::ELEMENT_TYPE_B1;
  const int64_t max_k = reads_product_ ? request_.k() : 0;
  const size_t n = static_cast<size_t>(request_.n());
  std::vector<DotProduct> dots(rows.size() * n);
  std::vector<double> b(n);
  for (int64_t k = 0; k < max_k; ++k) {
    for (size_t j = 0; j < n; ++j) {
      const auto column = static_cast<int64_t>(j);
      b[j] = Dequantized(request_.a().type(), b_.At(batch, k, column),
                         b_factors_.At(batch, column, k));
    }
    const bool is_b_plain = std::all_of(b.begin(), b.end(), IsPlain);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double a = Dequantized(request_.b().type(), a_.At(batch, rows[i], k),
                                   a_factors_.At(batch, rows[i], k));
      DotProduct* const line = dots.data() + i * n;
      if (is_bits) {
        for (size_t j = 0; j < n; ++j) AddBits(request_.bit_operation(), a, b[j], line[j]);
      } else if (is_b_plain && IsPlain(a)) {
        for (size_t j = 0; j < n; ++j) {
          const double product = a * b[j];
          line[j].sum += product;
          line[j].magnitude += std::fabs(product);
        }
      } else {
        for (size_t j = 0; j < n; ++j) AddProduct(a, b[j], line[j]);
      }
    }
  }
  return dots;
}

std::vector<BoundedElement> Reference::Rows(int64_t batch, const std::vector<int64_t>& rows) const {
  const int64_t n = request_.n();
  const std::vector<DotProduct> dots = DotProducts(batch, rows);
  std::vector<BoundedElement> elements;
  elements.reserve(dots.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const DotProduct& dot = dots[i * static_cast<size_t>(n) + static_cast<size_t>(j)];
      elements.push_back(Finish(dot, batch, rows[i], j));
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
  // A kernel chosen by name may lack promotion.
  const bool may_be_all = request_.fast_accumulation() || !request_.kernel().empty();
  return may_be_all ? request_.k() : std::min(request_.k(), kPromotionK);
}

BoundedElement Reference::Finish(const DotProduct& dot, int64_t batch, int64_t row,
                                 int64_t column) const {
  const bool is_exact = accumulation_type_ == v1::ELEMENT_TYPE_S32;
  const bool is_wide = is_exact || accumulation_type_ == v1::ELEMENT_TYPE_F64;
  BoundedElement accumulated;
  if (is_exact) {
    accumulated.value = Wrapped(dot.sum);
  } else if (reads_product_) {
    const bool is_dequantized = IsHalf(request_.a().type()) || IsHalf(request_.b().type());
    const bool has_blocks =
        !is_dequantized && (request_.a().scale().has_blocks() || request_.b().scale().has_blocks());
    const int64_t roundings = has_blocks ? 2 * request_.k() + 4 : request_.k();
    accumulated =
        AccumulatorOf(dot, KnownType(accumulation_type_).value(), roundings, NarrowDepth());
  }
  EpilogueBound epilogue(is_wide, accumulated);
  if (request_.a().scale().values_size() + request_.b().scale().values_size() > 0) {
    epilogue.Scale(ScaleAt(request_.a(), row), ScaleAt(request_.b(), column));
  }
  if (request_.has_alpha()) epilogue.Multiply(request_.alpha());
  if (c_.has_value()) epilogue.AddTerm(request_.beta(), c_->At(batch, row, column));
  if (bias_.has_value()) {
    const bool along_rows = request_.bias().axis() == v1::BIAS_AXIS_ROWS;
    epilogue.AddTerm(1, bias_->At(0, 0, along_rows ? row : column));
  }
  const Activation activation = ActivationOf(request_.activation());
  epilogue.Activate(activation, Activated(activation, epilogue.element().value));
  return epilogue.element();
}

namespace {

// The error of a correct element relative to its bound.
double Share(const VerifiedElement& element) {
  if (element.error == 0 || !std::isfinite(element.bound)) return 0;
  return element.error / element.bound;
}

class Checker {
 public:
  Checker(const v1::MultiplyRequest& request, const v1::Matrix& d, Summation summation)
      : reference_(request, summation), d_(d), reader_(d) {
    const bool is_empty = d.batch() == 0 || d.rows() == 0 || d.columns() == 0;
    if (!is_empty) result_.total = d.batch() * d.rows() * d.columns();
  }

  void CheckRows(int64_t batch, const std::vector<int64_t>& rows) {
    const std::vector<BoundedElement> elements = reference_.Rows(batch, rows);
    for (size_t i = 0; i < elements.size(); ++i) {
      const int64_t column = static_cast<int64_t>(i) % d_.columns();
      const int64_t row = rows[i / static_cast<size_t>(d_.columns())];
      Check(elements[i], {.batch = batch, .row = row, .column = column});
    }
  }

  const Verification& result() const { return result_; }

 private:
  void Check(const BoundedElement& reference, VerifiedElement element) {
    // A type without NaN and infinity cannot represent NaN; the contract does not specify the
    // pattern.
    const bool hides_nan = std::isnan(reference.value) && !HasNan(d_.type()) && IsFloat(d_.type());
    if (!reference.is_decidable || hides_nan) {
      ++result_.undecidable;
      return;
    }
    element.got = reader_.At(element.batch, element.row, element.column);
    element.want = reference.value;
    element.error = element.got == element.want ? 0 : std::fabs(element.got - element.want);
    const ElementType type = KnownType(d_.type()).value();
    if (std::isfinite(element.want)) {
      const auto [min, max] = ConversionsOf(type, reference);
      element.bound = std::max(max - element.want, element.want - min);
    }
    ++result_.checked;
    const bool is_right = IsConversionOf(type, element.got, reference);
    const bool is_first = result_.checked == 1;
    if (!is_right) {
      if (result_.wrong++ == 0) result_.worst = element;
    } else if (result_.wrong == 0 && (is_first || Share(element) > Share(result_.worst))) {
      result_.worst = element;
    }
  }

  Reference reference_;
  const v1::Matrix& d_;
  MatrixReader reader_;
  Verification result_;
};

absl::Status CheckAnswer(const v1::MultiplyRequest& request, const v1::Matrix& d) {
  const int64_t batch = request.has_batch() ? request.batch() : 1;
  if (d.rows() != request.m() || d.columns() != request.n() || d.batch() != batch) {
    return absl::InvalidArgumentError(absl::StrCat("d: got ", d.batch(), " matrices of ", d.rows(),
                                                   "x", d.columns(), ", want ", batch, " of ",
                                                   request.m(), "x", request.n()));
  }
  return absl::OkStatus();
}

// `count` of `total` rows at even distances, including the first and the last.
std::vector<int64_t> EvenRows(int64_t total, int64_t count) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back(count == 1 ? total / 2
                              : static_cast<int64_t>(static_cast<double>(total - 1) /
                                                     static_cast<double>(count - 1) *
                                                     static_cast<double>(i)));
  }
  return rows;
}

}  // namespace

absl::StatusOr<Verification> Verify(const v1::MultiplyRequest& request, const v1::Matrix& d,
                                    const VerifyBudget& budget, Summation summation) {
  RETURN_IF_ERROR(CheckAnswer(request, d));
  Checker checker(request, d, summation);
  if (checker.result().total == 0) return checker.result();
  const double row_work =
      static_cast<double>(d.columns()) * static_cast<double>(std::max<int64_t>(1, request.k()));
  const double affordable =
      std::min(static_cast<double>(budget.multiplications) / row_work,
               static_cast<double>(budget.elements) / static_cast<double>(d.columns()));
  const double all_rows = static_cast<double>(d.batch()) * static_cast<double>(d.rows());
  // At least one row of some matrix; samples matrices if one row of each is too many.
  const double matrices = std::clamp(affordable, 1.0, static_cast<double>(d.batch()));
  const double rows =
      std::clamp(std::min(affordable, all_rows) / matrices, 1.0, static_cast<double>(d.rows()));
  const std::vector<int64_t> chosen_rows = EvenRows(d.rows(), static_cast<int64_t>(rows));
  for (int64_t batch : EvenRows(d.batch(), static_cast<int64_t>(matrices))) {
    checker.CheckRows(batch, chosen_rows);
  }
  return checker.result();
}

}  // namespace gemmd
