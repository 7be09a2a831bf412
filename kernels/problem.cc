// SPDX-License-Identifier: Apache-2.0
#include "kernels/problem.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/matrix/invalid.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

std::string_view NameOf(Order order) { return order == Order::kRowMajor ? "row" : "column"; }

bool IsNarrowFloat(ElementType type) { return IsFloat(type) && BitsOf(type) <= 8; }
bool IsHalf(ElementType type) { return type == ElementType::kF16 || type == ElementType::kBf16; }

// Whether one operand is quantized, and the other one a 16-bit float (dequantize.h).
bool IsDequantized(ElementType half, ElementType other) {
  return IsHalf(half) && BitsOf(other) <= 8 && other != ElementType::kB1;
}

// Whether sums of such products may have f16.
bool TakesF16Sums(ElementType a, ElementType b) {
  if (IsDequantized(a, b)) return a == ElementType::kF16;
  if (IsDequantized(b, a)) return b == ElementType::kF16;
  return a == ElementType::kF16 || IsNarrowFloat(a);
}

// "bf16 row", or "bf16 2:4" for a sparse matrix; "e4m3 row scaled f32 1x128" with factors of
// blocks.
std::string FormOf(const MatrixLayout& layout, const BlockScale* blocks) {
  const std::string_view form = layout.is_sparse() ? "2:4" : NameOf(layout.order);
  std::string text = Concat(NameOf(layout.type), " ", form);
  if (blocks != nullptr) AppendPart(text, Concat(" scaled ", gemmd::NameOf(*blocks)));
  return text;
}

absl::Status ValidateExtent(std::string_view name, int64_t value) {
  if (value >= 0) return absl::OkStatus();
  return Invalid(name, value, "0 or more");
}

struct Extent {
  std::string_view name;
  int64_t value;
};

absl::Status ValidateShape(std::string_view field, const MatrixLayout& layout, Extent rows,
                           Extent columns) {
  if (layout.rows != rows.value) {
    return Invalid(Concat(field, ".rows"), layout.rows, Concat(rows.name, " = ", rows.value));
  }
  if (layout.columns != columns.value) {
    return Invalid(Concat(field, ".columns"), layout.columns,
                   Concat(columns.name, " = ", columns.value));
  }
  return absl::OkStatus();
}

absl::Status ValidateLayout(std::string_view field, const MatrixLayout& layout, int64_t batch) {
  if (layout.leading_dimension < layout.line_length()) {
    return Invalid(
        Concat(field, ".leading_dimension"), layout.leading_dimension,
        Concat("at least the ", NameOf(layout.order), "'s ", layout.line_length(), " elements"));
  }
  const int64_t stride = layout.batch_stride_bytes;
  if (stride < 0) {
    return Invalid(Concat(field, ".batch_stride"), Concat(stride, " bytes"), "0 or more");
  }
  const int64_t element_bytes = (BitsOf(layout.type) + 7) / 8;
  if (stride % element_bytes != 0) {
    return Invalid(Concat(field, ".batch_stride"), Concat(stride, " bytes"),
                   Concat("a multiple of ", element_bytes));
  }
  return BytesOf(field, layout, batch).status();
}

absl::Status ValidateDense(std::string_view field, const MatrixLayout& layout) {
  if (!layout.is_sparse()) return absl::OkStatus();
  return Invalid(Concat(field, ".sparsity"), "2:4", "none (only A may be sparse)");
}

// Checks a sparse A whose shape is right, sizes included.
absl::Status ValidateSparse(std::string_view field, const MatrixLayout& layout, int64_t batch) {
  if (layout.order != Order::kRowMajor) {
    return Invalid(Concat(field, ".order"), "column", "row where sparsity is 2:4");
  }
  if (layout.leading_dimension != layout.columns) {
    return Invalid(Concat(field, ".leading_dimension"), layout.leading_dimension,
                   Concat("k = ", layout.columns, " where sparsity is 2:4"));
  }
  ASSIGN_OR_RETURN(const SparseLayout one,
                   SparseLayoutOf(field, layout.type, layout.rows, layout.columns));
  if (layout.batch_stride_bytes != 0 && layout.batch_stride_bytes != one.bytes) {
    return Invalid(Concat(field, ".batch_stride"), Concat(layout.batch_stride_bytes, " bytes"),
                   Concat("0 or one matrix = ", one.bytes, " where sparsity is 2:4"));
  }
  return BytesOf(field, layout, batch).status();
}

absl::Status ValidateA(const Problem& problem) {
  RETURN_IF_ERROR(ValidateShape("a", problem.a, {"m", problem.m}, {"k", problem.k}));
  if (problem.a.is_sparse()) return ValidateSparse("a", problem.a, problem.batch);
  return ValidateLayout("a", problem.a, problem.batch);
}

absl::Status ValidateOperands(const Problem& problem) {
  ASSIGN_OR_RETURN(const ElementType usual, DefaultAccumulation(problem.a.type, problem.b.type));
  const ElementType got = problem.accumulation;
  const bool takes_f16 = TakesF16Sums(problem.a.type, problem.b.type);
  const bool takes_f64 = problem.a.type == ElementType::kF32;
  if (got != usual && !(got == ElementType::kF16 && takes_f16) &&
      !(got == ElementType::kF64 && takes_f64)) {
    return Invalid("accumulation_type", NameOf(got),
                   Concat(takes_f16 ? "f16 or " : "", NameOf(usual), takes_f64 ? " or f64" : "",
                          " for ", NameOf(problem.a.type), " operands"));
  }
  if (problem.bit_operation == BitOperation::kXor && problem.a.type != ElementType::kB1) {
    return Invalid("bit_operation", "xor",
                   Concat("and for operands of type ", NameOf(problem.a.type)));
  }
  return absl::OkStatus();
}

absl::Status ValidateBlocks(std::string_view field, const BlockScale& blocks, ElementType type,
                            ElementType other, int64_t extent, const Problem& problem) {
  const std::string name = Concat(field, ".blocks");
  if (!IsNarrowFloat(type) && !IsDequantized(other, type)) {
    return Invalid(name, Concat("factors for operands of type ", NameOf(type)),
                   "none (only e4m3, e5m2, e3m2, e2m3 and e2m1 have factors of blocks, and s8, u8, "
                   "s4 and u4 times f16 or bf16)");
  }
  return FactorBytes(name, blocks, extent, problem.k, problem.batch).status();
}

absl::Status ValidateScale(std::string_view field, ScaleKind scale, ElementType type) {
  if (scale == ScaleKind::kNone || BitsOf(type) == 8) return absl::OkStatus();
  return Invalid(field, Concat("values for operands of type ", NameOf(type)),
                 "none (only e4m3, e5m2, s8 and u8 are scaled)");
}

absl::Status ValidateB(const Problem& problem) {
  RETURN_IF_ERROR(ValidateDense("b", problem.b));
  RETURN_IF_ERROR(ValidateShape("b", problem.b, {"k", problem.k}, {"n", problem.n}));
  return ValidateLayout("b", problem.b, problem.batch);
}

absl::Status ValidateC(const Problem& problem) {
  if (!problem.has_c()) return absl::OkStatus();
  RETURN_IF_ERROR(ValidateDense("c", problem.c));
  if (problem.c.type == ElementType::kB1) return Invalid("c.type", "b1", "any other type");
  RETURN_IF_ERROR(ValidateShape("c", problem.c, {"m", problem.m}, {"n", problem.n}));
  return ValidateLayout("c", problem.c, problem.batch);
}

absl::Status ValidateD(const Problem& problem) {
  const MatrixLayout& d = problem.d;
  RETURN_IF_ERROR(ValidateDense("d", d));
  if (d.type == ElementType::kB1) return Invalid("d.type", "b1", "any other type");
  RETURN_IF_ERROR(ValidateShape("d", d, {"m", problem.m}, {"n", problem.n}));
  RETURN_IF_ERROR(ValidateLayout("d", d, problem.batch));
  ASSIGN_OR_RETURN(const ByteCount one, BytesOf("d", d, 1));
  if (problem.batch > 1 && d.batch_stride_bytes < one.least) {
    return Invalid("d.batch_stride", Concat(d.batch_stride_bytes, " bytes"),
                   Concat("at least one matrix = ", one.least));
  }
  return absl::OkStatus();
}

absl::Status ValidateBias(const Problem& problem) {
  if (problem.bias_axis == BiasAxis::kNone) return absl::OkStatus();
  if (problem.bias_type == ElementType::kB1) return Invalid("bias.type", "b1", "any other type");
  const int64_t count = problem.bias_axis == BiasAxis::kRows ? problem.m : problem.n;
  if (PackedBytes(problem.bias_type, count).value()) return absl::OkStatus();
  return Invalid("bias", Concat(count, " elements of type ", NameOf(problem.bias_type)),
                 "sizes in bytes below 2^63");
}

// The total bytes of all matrices read.
Checked AllBytesRead(const Problem& problem) {
  const auto bytes = [&](const MatrixLayout& layout) -> Checked {
    return BytesOf("", layout, problem.batch).value_or(ByteCount{}).least;
  };
  Checked total = 0;
  const auto factors = [&](const BlockScale* blocks, int64_t extent) -> Checked {
    if (blocks == nullptr) return 0;
    return FactorBytes("", *blocks, extent, problem.k, problem.batch).value_or(0);
  };
  if (problem.has_product()) {
    total = bytes(problem.a) + bytes(problem.b) + factors(problem.blocks_of_a(), problem.m) +
            factors(problem.blocks_of_b(), problem.n);
  }
  if (problem.has_c()) total = total + bytes(problem.c);
  if (problem.bias_axis != BiasAxis::kNone) {
    const int64_t count = problem.bias_axis == BiasAxis::kRows ? problem.m : problem.n;
    total = total + PackedBytes(problem.bias_type, count);
  }
  return total;
}

absl::Status ValidateTotal(const Problem& problem) {
  const Checked total = AllBytesRead(problem) + BytesWritten(problem);
  if (total.value()) return absl::OkStatus();
  return Invalid("a, b, c, d", "2^63 bytes or more together", "all bytes below 2^63");
}

}  // namespace

Problem Transposed(const Problem& problem) {
  const auto transpose = [](MatrixLayout layout) {
    std::swap(layout.rows, layout.columns);
    layout.order = layout.order == Order::kRowMajor ? Order::kColumnMajor : Order::kRowMajor;
    return layout;
  };
  Problem result = problem;
  std::swap(result.m, result.n);
  result.a = transpose(problem.b);
  result.b = transpose(problem.a);
  result.c = transpose(problem.c);
  result.d = transpose(problem.d);
  std::swap(result.a_scale, result.b_scale);
  std::swap(result.a_blocks, result.b_blocks);
  std::swap(result.a_stays, result.b_stays);
  std::swap(result.a_factors_stay, result.b_factors_stay);
  switch (problem.bias_axis) {
    case BiasAxis::kNone: break;
    case BiasAxis::kRows: result.bias_axis = BiasAxis::kColumns; break;
    case BiasAxis::kColumns: result.bias_axis = BiasAxis::kRows; break;
  }
  return result;
}

absl::Status Validate(const Problem& problem) {
  RETURN_IF_ERROR(ValidateExtent("m", problem.m));
  RETURN_IF_ERROR(ValidateExtent("n", problem.n));
  RETURN_IF_ERROR(ValidateExtent("k", problem.k));
  RETURN_IF_ERROR(ValidateExtent("batch", problem.batch));
  RETURN_IF_ERROR(ValidateOperands(problem));
  if (const BlockScale* const blocks = problem.blocks_of_a()) {
    RETURN_IF_ERROR(
        ValidateBlocks("a.scale", *blocks, problem.a.type, problem.b.type, problem.m, problem));
  } else {
    RETURN_IF_ERROR(ValidateScale("a.scale", problem.a_scale, problem.a.type));
  }
  if (const BlockScale* const blocks = problem.blocks_of_b()) {
    RETURN_IF_ERROR(
        ValidateBlocks("b.scale", *blocks, problem.b.type, problem.a.type, problem.n, problem));
  } else {
    RETURN_IF_ERROR(ValidateScale("b.scale", problem.b_scale, problem.b.type));
  }
  RETURN_IF_ERROR(ValidateA(problem));
  RETURN_IF_ERROR(ValidateB(problem));
  RETURN_IF_ERROR(ValidateC(problem));
  RETURN_IF_ERROR(ValidateD(problem));
  RETURN_IF_ERROR(ValidateBias(problem));
  const Checked operations = Checked(2) * problem.m * problem.n * problem.k * problem.batch;
  const bool is_empty = problem.m == 0 || problem.n == 0 || problem.k == 0 || problem.batch == 0;
  if (!is_empty && !operations.value()) {
    return Invalid("m, n, k",
                   Concat(problem.m, "x", problem.n, "x", problem.k, " and batch ", problem.batch),
                   "2*m*n*k*batch below 2^63");
  }
  return ValidateTotal(problem);
}

absl::StatusOr<ElementType> DefaultAccumulation(ElementType a, ElementType b) {
  if (a == ElementType::kS32 || b == ElementType::kS32) {
    return Invalid(a == ElementType::kS32 ? "a.type" : "b.type", "s32",
                   "a type of operands (s32 is for C, D and bias)");
  }
  const bool are_small_floats = IsNarrowFloat(a) && IsNarrowFloat(b);
  const bool are_small_integers =
      IsInteger(a) && IsInteger(b) && BitsOf(a) == BitsOf(b) && a != ElementType::kB1;
  if (IsDequantized(a, b) || IsDequantized(b, a)) return ElementType::kF32;
  if (a != b && !are_small_floats && !are_small_integers) {
    std::string want(NameOf(a));
    if (IsHalf(a)) want = Concat(NameOf(a), " or a type of 4 to 8 bits");
    if (IsNarrowFloat(a)) want = "f16, bf16, e4m3, e5m2, e3m2, e2m3 or e2m1";
    if (a == ElementType::kS8 || a == ElementType::kU8) want = "f16, bf16, s8 or u8";
    if (a == ElementType::kS4 || a == ElementType::kU4) want = "f16, bf16, s4 or u4";
    return Invalid("b.type", NameOf(b), Concat(want, " with a.type ", NameOf(a)));
  }
  if (a == ElementType::kF64) return ElementType::kF64;
  return IsInteger(a) ? ElementType::kS32 : ElementType::kF32;
}

ShapeClass ShapeClassOf(const Problem& problem) {
  constexpr double kFewOperations = 1e6;  // In one matrix.
  constexpr int64_t kFewLines = 16;
  if (!problem.has_product() || !problem.has_output()) return ShapeClass::kNoProduct;
  const double operations = 2 * static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                            static_cast<double>(problem.k);
  if (operations < kFewOperations) {
    return problem.batch > 1 ? ShapeClass::kBatch : ShapeClass::kSmall;
  }
  return std::min(problem.m, problem.n) <= kFewLines ? ShapeClass::kSkinny : ShapeClass::kLarge;
}

std::string_view NameOf(ShapeClass shape) {
  switch (shape) {
    case ShapeClass::kNoProduct: return "no product";
    case ShapeClass::kSmall: return "small";
    case ShapeClass::kBatch: return "batch";
    case ShapeClass::kSkinny: return "skinny";
    case ShapeClass::kLarge: return "large";
  }
  return "";
}

int64_t Operations(const Problem& problem) {
  const Checked operations = Checked(2) * problem.m * problem.n * problem.k * problem.batch;
  return operations.value().value_or(
      0);  // Only products with a factor of 0 can overflow before that.
}

int64_t BytesRead(const Problem& problem) { return AllBytesRead(problem).value().value_or(0); }

int64_t BytesWritten(const Problem& problem) {
  return BytesOf("", problem.d, problem.batch).value_or(ByteCount{}).full;
}

std::string Describe(const Problem& problem) {
  std::string text = Concat(
      problem.m, "x", problem.n, "x", problem.k, " ", gemmd::NameOf(problem.d.type), " <- ",
      FormOf(problem.a, problem.blocks_of_a()), ", ", FormOf(problem.b, problem.blocks_of_b()));
  if (problem.batch != 1) AppendPart(text, Concat(", batch ", problem.batch));
  return text;
}

}  // namespace gemmd
