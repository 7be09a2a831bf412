// SPDX-License-Identifier: Apache-2.0
#include "gemmd/prepare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/operand_size.h"
#include "client/sparse_operand.h"
#include "gemmd/element_codec.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

absl::Status CheckCount(std::span<const float> values, int64_t rows, int64_t columns) {
  int64_t want = 0;
  const bool overflows = __builtin_mul_overflow(rows, columns, &want);
  if (rows >= 0 && columns >= 0 && !overflows && static_cast<size_t>(want) == values.size()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("values: got ", values.size(), ", want ", rows, "x", columns));
}

// The shape of one dense matrix.
OperandShape ShapeOfOne(const MatrixView& view) {
  OperandShape shape = ShapeOf(view);
  shape.batch_stride.reset();
  shape.sparsity = v1::SPARSITY_NONE;
  return shape;
}

// The nearest bf16 of a float: faster than the generic conversion through double.
uint16_t Bf16Bits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

absl::StatusOr<OwnedMatrix> EmptyMatrix(v1::ElementType type, int64_t rows, int64_t columns) {
  OwnedMatrix matrix;
  matrix.type = type;
  matrix.rows = rows;
  matrix.columns = columns;
  ASSIGN_OR_RETURN(const auto bytes,
                   SizeOperand("matrix", {.type = type, .rows = rows, .columns = columns}));
  matrix.data.resize(static_cast<size_t>(bytes.full));
  return matrix;
}

// The value to which a factor scales the largest magnitude: the type's largest, which stays
// symmetric for signed integers. 0 for a type without factors.
double LargestScaled(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_E4M3: return 448;
    case v1::ELEMENT_TYPE_E5M2: return 57344;
    case v1::ELEMENT_TYPE_E3M2: return 28;
    case v1::ELEMENT_TYPE_E2M3: return 7.5;
    case v1::ELEMENT_TYPE_E2M1: return 6;
    case v1::ELEMENT_TYPE_S8: return 127;
    case v1::ELEMENT_TYPE_U8: return 255;
    case v1::ELEMENT_TYPE_S4: return 7;
    default: return 0;
  }
}

absl::Status CheckFinite(std::span<const float> values, int64_t columns, bool has_sign) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && (values[i] >= 0 || has_sign)) continue;
    const auto at = static_cast<int64_t>(i);
    return absl::InvalidArgumentError(absl::StrCat("values: got ", values[i], " at [", at / columns,
                                                   ", ", at % columns, "], want a finite value",
                                                   has_sign ? "" : " of at least 0"));
  }
  return absl::OkStatus();
}

}  // namespace

MatrixView OwnedMatrix::view() const {
  MatrixView view = PackedView(type, std::as_bytes(std::span(data)), rows, columns);
  view.sparsity = sparsity;
  view.scale = scale;
  if (factor_type != v1::FACTOR_TYPE_UNSPECIFIED) {
    view.blocks = {.type = factor_type,
                   .rows_per_block = rows_per_block,
                   .k_per_block = k_per_block,
                   .factors = std::as_bytes(std::span(factors)),
                   .k_along_columns = !is_k_along_rows};
  }
  return view;
}

absl::StatusOr<OwnedMatrix> Encode(std::span<const float> values, int64_t rows, int64_t columns,
                                   v1::ElementType type) {
  RETURN_IF_ERROR(CheckCount(values, rows, columns));
  auto matrix = EmptyMatrix(type, rows, columns);
  // An empty matrix may have any number of lines.
  if (!matrix.ok() || values.empty()) return matrix;
  char* const data = matrix->data.data();
  if (type == v1::ELEMENT_TYPE_F32) {
    std::memcpy(data, values.data(), values.size_bytes());
    return matrix;
  }
  if (type == v1::ELEMENT_TYPE_BF16) {
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits = Bf16Bits(values[i]);
      std::memcpy(data + i * sizeof(bits), &bits, sizeof(bits));
    }
    return matrix;
  }
  const int64_t line_bytes = *PackedLineBytes(type, columns);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const double value = values[static_cast<size_t>(i * columns + j)];
      StoreElement(type, ElementPattern(type, value), j, data + i * line_bytes);
    }
  }
  return matrix;
}

absl::StatusOr<std::vector<float>> Decode(const MatrixView& matrix) {
  if (matrix.sparsity != v1::SPARSITY_NONE) {
    return absl::InvalidArgumentError("matrix.sparsity: got 2:4, want none");
  }
  const OperandShape shape = ShapeOfOne(matrix);
  const int64_t got = static_cast<int64_t>(matrix.data.size());
  RETURN_IF_ERROR(CheckOperandBytes("matrix", "rows*columns", shape, got));
  if (matrix.rows == 0 || matrix.columns == 0) return std::vector<float>();
  const int64_t stride = SizeOperand("matrix", shape)->line_stride;
  const absl::string_view data(reinterpret_cast<const char*>(matrix.data.data()),
                               matrix.data.size());
  const bool by_columns = matrix.order == v1::ORDER_COLUMN_MAJOR;
  std::vector<float> values;
  values.reserve(static_cast<size_t>(matrix.rows * matrix.columns));
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (int64_t j = 0; j < matrix.columns; ++j) {
      const auto line = data.substr(static_cast<size_t>((by_columns ? j : i) * stride));
      const uint64_t pattern = LoadElement(matrix.type, line, by_columns ? i : j);
      values.push_back(static_cast<float>(ElementValue(matrix.type, pattern)));
    }
  }
  return values;
}

absl::StatusOr<OwnedMatrix> Pack24(const MatrixView& dense, Prune prune) {
  const OperandShape shape = ShapeOfOne(dense);
  ASSIGN_OR_RETURN(const auto bytes, SizeOperand("dense", shape));
  const int64_t got = static_cast<int64_t>(dense.data.size());
  RETURN_IF_ERROR(CheckOperandBytes("dense", "rows*columns", shape, got));
  const bool by_columns = dense.order == v1::ORDER_COLUMN_MAJOR;
  if (bytes.line_stride != PackedLineBytes(dense.type, by_columns ? dense.rows : dense.columns)) {
    return absl::InvalidArgumentError(absl::StrCat("dense.leading_dimension: got ",
                                                   dense.leading_dimension,
                                                   ", want 0 or the length of a line"));
  }
  ASSIGN_OR_RETURN(auto packed, CompressOperand("dense", dense, 1,
                                                prune == Prune::kSmallest ? Pruning::kByMagnitude
                                                                          : Pruning::kNone));
  OwnedMatrix matrix;
  matrix.type = dense.type;
  matrix.rows = dense.transpose ? dense.columns : dense.rows;
  matrix.columns = dense.transpose ? dense.rows : dense.columns;
  matrix.sparsity = v1::SPARSITY_2_4;
  matrix.data = std::move(packed.data);
  matrix.dropped = packed.dropped;
  return matrix;
}

namespace {

struct Factor {
  double value;
  std::string bytes;
};

// The smallest representable power of two that is at least `ratio`.
Factor PowerOfTwo(double ratio) {
  int exponent = 0;
  const double fraction = std::frexp(ratio, &exponent);
  const int min_exponent = std::clamp(fraction == 0.5 ? exponent - 1 : exponent, -127, 127);
  return {std::ldexp(1.0, min_exponent), std::string(1, static_cast<char>(min_exponent + 127))};
}

// The same for the codes of e4m3, of which 0x7e is the largest.
Factor MinUe4m3(double ratio) {
  int code = 1;
  while (code < 0x7e && ElementValue(v1::ELEMENT_TYPE_E4M3, static_cast<uint64_t>(code)) < ratio) {
    ++code;
  }
  return {ElementValue(v1::ELEMENT_TYPE_E4M3, static_cast<uint64_t>(code)),
          std::string(1, static_cast<char>(code))};
}

Factor FactorOf(v1::FactorType type, double magnitude, double largest) {
  const double ratio = magnitude == 0 ? 1 : magnitude / largest;
  if (type == v1::FACTOR_TYPE_UE8M0) return PowerOfTwo(ratio);
  if (type == v1::FACTOR_TYPE_UE4M3) return MinUe4m3(ratio);
  float value = static_cast<float>(ratio);
  if (!(value > 0)) value = 1;  // The magnitude is so small that its factor would be 0.
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return {value, bytes};
}

int64_t Blocks(int64_t extent, int64_t block) { return extent / block + (extent % block != 0); }

// As QuantizeBlocks, for any type with factors.
absl::StatusOr<OwnedMatrix> Scaled(std::span<const float> values, int64_t rows, int64_t columns,
                                   v1::ElementType type, const BlockFormat& format) {
  RETURN_IF_ERROR(CheckCount(values, rows, columns));
  RETURN_IF_ERROR(CheckFinite(values, columns, type != v1::ELEMENT_TYPE_U8));
  OwnedMatrix matrix = {.type = type, .rows = rows, .columns = columns};
  matrix.factor_type = format.type;
  matrix.rows_per_block = format.lines;
  matrix.k_per_block = format.depth;
  matrix.is_k_along_rows = format.is_k_along_rows;
  // An empty matrix may have any number of lines, but has no blocks.
  if (values.empty()) return matrix;
  const bool is_along = format.is_k_along_rows;
  const int64_t depth_blocks = Blocks(is_along ? columns : rows, format.depth);
  const int64_t line_blocks = Blocks(is_along ? rows : columns, format.lines);
  // The block of an element is the sum of those of its row and its column.
  const auto block_of = [&](int64_t at, bool is_line) {
    return at / (is_line ? format.lines : format.depth) * (is_line ? depth_blocks : 1);
  };
  std::vector<int64_t> block_of_column;
  for (int64_t j = 0; j < columns; ++j) block_of_column.push_back(block_of(j, !is_along));
  std::vector<double> largest(static_cast<size_t>(line_blocks * depth_blocks));
  const auto for_each = [&](const auto& visit) {
    for (int64_t i = 0, at = 0; i < rows; ++i) {
      double* const of_row = largest.data() + block_of(i, is_along);
      for (int64_t j = 0; j < columns; ++j, ++at) {
        visit(i, j, double{values[static_cast<size_t>(at)]},
              of_row[block_of_column[static_cast<size_t>(j)]]);
      }
    }
  };
  for_each([](int64_t, int64_t, double value, double& magnitude) {
    magnitude = std::max(magnitude, std::fabs(value));
  });
  for (double& magnitude : largest) {
    const Factor factor = FactorOf(format.type, magnitude, LargestScaled(type));
    matrix.factors += factor.bytes;
    magnitude = factor.value;
  }
  const int64_t line_bytes = *PackedLineBytes(type, columns);
  matrix.data.resize(static_cast<size_t>(rows * line_bytes));
  const double limit = LargestScaled(type);
  for_each([&](int64_t row, int64_t column, double value, double factor) {
    const double bounded = std::clamp(value / factor, -limit, limit);
    StoreElement(type, ElementPattern(type, bounded), column,
                 matrix.data.data() + row * line_bytes);
  });
  return matrix;
}

}  // namespace

absl::StatusOr<OwnedMatrix> QuantizeBlocks(std::span<const float> values, int64_t rows,
                                           int64_t columns, v1::ElementType type,
                                           const BlockFormat& format) {
  if (LargestScaled(type) == 0 || type == v1::ELEMENT_TYPE_U8) {
    return absl::InvalidArgumentError(absl::StrCat(
        "type: got ", ElementTypeName(type), ", want e4m3, e5m2, e3m2, e2m3, e2m1, s8 or s4"));
  }
  if (format.type == v1::FACTOR_TYPE_UNSPECIFIED || !v1::FactorType_IsValid(format.type)) {
    return absl::InvalidArgumentError(absl::StrCat("format.type: got unknown value ",
                                                   static_cast<int>(format.type),
                                                   ", want f32, ue8m0 or ue4m3"));
  }
  if (format.lines < 1 || format.depth < 1) {
    return absl::InvalidArgumentError(absl::StrCat("format: got blocks of ", format.lines, "x",
                                                   format.depth, ", want 1x1 or more"));
  }
  return Scaled(values, rows, columns, type, format);
}

absl::StatusOr<OwnedMatrix> Quantize(std::span<const float> values, int64_t rows, int64_t columns,
                                     v1::ElementType type, ScalePer per) {
  if (LargestScaled(type) == 0 || ElementBits(type) != 8) {
    return absl::InvalidArgumentError(
        absl::StrCat("type: got ", ElementTypeName(type), ", want e4m3, e5m2, s8 or u8"));
  }
  // Blocks of as many rows and columns as a factor covers.
  ASSIGN_OR_RETURN(auto blocks, Scaled(values, rows, columns, type,
                                       {.type = v1::FACTOR_TYPE_F32,
                                        .lines = per == ScalePer::kRow ? 1 : rows,
                                        .depth = per == ScalePer::kColumn ? 1 : columns}));
  OwnedMatrix matrix = {
      .type = type, .rows = rows, .columns = columns, .data = std::move(blocks.data)};
  matrix.scale.assign(values.empty() ? 1 : blocks.factors.size() / sizeof(float), 1.0f);
  std::memcpy(matrix.scale.data(), blocks.factors.data(), blocks.factors.size());
  return matrix;
}

}  // namespace gemmd
