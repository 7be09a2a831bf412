// SPDX-License-Identifier: Apache-2.0
#include "server/wire/convert_operand.h"

#include <algorithm>
#include <string>

#include "kernels/sparse24.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

// The wire numbers element types in the order of kAllElementTypes, from 1.
static_assert(static_cast<int>(ElementType::kF64) + 1 == v1::ELEMENT_TYPE_F64);
static_assert(static_cast<int>(ElementType::kE2m1) + 1 == v1::ELEMENT_TYPE_E2M1);
static_assert(static_cast<int>(ElementType::kS32) + 1 == v1::ELEMENT_TYPE_S32);
static_assert(kAllElementTypes.size() + 1 == v1::ElementType_ARRAYSIZE);

Order Flipped(Order order) {
  return order == Order::kRowMajor ? Order::kColumnMajor : Order::kRowMajor;
}

// Tells the bytes of a sparse matrix: "8 lines of 16 bytes of values and 2 of indices = 144".
std::string WantedSparseBytes(const MatrixLayout& layout, int64_t batch, const ByteCount& count) {
  const absl::StatusOr<SparseLayout> one =
      SparseLayoutOf("", layout.type, layout.rows, layout.columns);
  if (!one.ok()) return Concat(count.full);  // Never happens: the sizes have been checked.
  std::string wanted = Concat(layout.rows, " lines of ", one->value_line_bytes,
                              " bytes of values and ", one->index_line_bytes, " of indices");
  if (batch != 1) {
    wanted += Concat(", batch ", batch, " every ", layout.batch_stride_bytes, " bytes");
  }
  return wanted + Concat(" = ", count.full);
}

// Tells "m*k*2 = 8192" where the layout is plain, otherwise lines and strides.
std::string WantedBytes(std::string_view shape, const MatrixLayout& layout, int64_t batch,
                        const ByteCount& count) {
  if (layout.is_sparse()) return WantedSparseBytes(layout, batch, count);
  const bool tight = layout.leading_dimension == layout.line_length();
  if (tight && batch == 1 && BitsOf(layout.type) % 8 == 0) {
    return Concat(shape, "*", BitsOf(layout.type) / 8, " = ", count.full);
  }
  std::string wanted = Concat(layout.lines(), " lines of ", layout.line_stride_bytes(), " bytes");
  if (batch != 1) {
    wanted += Concat(", batch ", batch, " every ", layout.batch_stride_bytes, " bytes");
  }
  wanted += Concat(" = ", count.full);
  if (count.least != count.full)
    wanted += Concat(" (or ", count.least, " without the last padding)");
  return wanted;
}

absl::Status RefuseSparse(std::string_view field, std::string_view member, std::string_view got,
                          std::string_view want) {
  return absl::InvalidArgumentError(
      GotWant(Concat(field, member), got, Concat(want, " where sparsity is 2:4")));
}

absl::StatusOr<MatrixLayout> ParseSparseLayout(std::string_view field, const v1::Operand& operand,
                                               ElementType type, int64_t rows, int64_t columns) {
  if (operand.order() != v1::ORDER_ROW_MAJOR) {
    return RefuseSparse(field, ".order", "column", "row");
  }
  if (operand.transpose()) return RefuseSparse(field, ".transpose", "true", "false");
  if (operand.leading_dimension() != 0) {
    return RefuseSparse(field, ".leading_dimension", Concat(operand.leading_dimension()), "0");
  }
  if (operand.batch_stride() != 0) {
    return RefuseSparse(field, ".batch_stride", Concat(operand.batch_stride()), "none or 0");
  }
  ASSIGN_OR_RETURN(MatrixLayout layout, TightSparseLayout(field, type, rows, columns));
  if (operand.has_batch_stride()) layout.batch_stride_bytes = 0;
  return layout;
}

}  // namespace

absl::Status UnknownValue(std::string_view field, int value) {
  return absl::InvalidArgumentError(Concat(field, ": got unknown value ", value));
}

absl::StatusOr<ElementType> ParseType(std::string_view field, v1::ElementType type,
                                      std::optional<ElementType> unspecified) {
  if (type == v1::ELEMENT_TYPE_UNSPECIFIED) {
    if (unspecified.has_value()) return *unspecified;
    return absl::InvalidArgumentError(Concat(field, ": got none, want an element type"));
  }
  if (!v1::ElementType_IsValid(type)) return UnknownValue(field, type);
  return static_cast<ElementType>(type - 1);
}

absl::StatusOr<Order> ParseOrder(std::string_view field, v1::Order order) {
  switch (order) {
    case v1::ORDER_ROW_MAJOR: return Order::kRowMajor;
    case v1::ORDER_COLUMN_MAJOR: return Order::kColumnMajor;
    default: return UnknownValue(field, order);
  }
}

// TightLayout here and Validate later check the sizes, so no overflow goes unnoticed.
absl::StatusOr<MatrixLayout> ParseLayout(std::string_view field, ElementType type, Order order,
                                         int64_t rows, int64_t columns, const Strides& strides) {
  ASSIGN_OR_RETURN(MatrixLayout layout, TightLayout(field, type, order, rows, columns));
  if (strides.leading_dimension != 0) {
    if (strides.leading_dimension < layout.line_length()) {
      return absl::InvalidArgumentError(
          Concat(field, ".leading_dimension: got ", strides.leading_dimension,
                 ", want 0 or at least the length of a ",
                 order == Order::kRowMajor ? "row" : "column", ", ", layout.line_length()));
    }
    layout.leading_dimension = strides.leading_dimension;
    int64_t line_bits = 0;
    int64_t matrix_bytes = 0;
    if (__builtin_mul_overflow(layout.leading_dimension, BitsOf(type), &line_bits) ||
        __builtin_add_overflow(line_bits, 7, &line_bits) ||
        __builtin_mul_overflow(line_bits / 8, layout.lines(), &matrix_bytes)) {
      return absl::InvalidArgumentError(Concat(field, ".leading_dimension: got ",
                                               strides.leading_dimension,
                                               ", want a matrix of less than 2^63 bytes"));
    }
    layout.batch_stride_bytes = matrix_bytes;
  }
  if (strides.batch_stride.has_value()) {
    const int64_t stride = *strides.batch_stride;
    int64_t stride_bits = 0;
    if (stride < 0 || __builtin_mul_overflow(stride, BitsOf(type), &stride_bits)) {
      return absl::InvalidArgumentError(Concat(field, ".batch_stride: got ", stride,
                                               ", want at least 0 and less than 2^63 bits"));
    }
    if (stride_bits % 8 != 0) {
      return absl::InvalidArgumentError(Concat(field, ".batch_stride: got ", stride,
                                               ", want a whole number of bytes of ", BitsOf(type),
                                               "-bit elements"));
    }
    layout.batch_stride_bytes = stride_bits / 8;
  }
  return layout;
}

absl::StatusOr<MatrixLayout> ParseOperandLayout(std::string_view field, const v1::Operand& operand,
                                                int64_t rows, int64_t columns,
                                                std::optional<ElementType> default_type) {
  ASSIGN_OR_RETURN(const ElementType type,
                   ParseType(Concat(field, ".type"), operand.type(), default_type));
  ASSIGN_OR_RETURN(const Order stored, ParseOrder(Concat(field, ".order"), operand.order()));
  if (!v1::Sparsity_IsValid(operand.sparsity())) {
    return UnknownValue(Concat(field, ".sparsity"), operand.sparsity());
  }
  if (operand.sparsity() != v1::SPARSITY_NONE) {
    return ParseSparseLayout(field, operand, type, rows, columns);
  }
  const Order used = operand.transpose() ? Flipped(stored) : stored;
  return ParseLayout(field, type, used, rows, columns, StridesOf(operand));
}

int64_t FieldBytes::size() const {
  int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += static_cast<int64_t>(piece.size());
  return bytes;
}

FieldBytes FindBytes(const google::protobuf::Message& message, int number,
                     const std::string& own_bytes, const HeldFields& held) {
  if (HeldField* const field = held.Find(message, number)) return {field->pieces(), field};
  if (own_bytes.empty()) return {};
  return {{PieceOf(own_bytes)}, nullptr};
}

absl::StatusOr<FieldBytes> ParseBytes(std::string_view field, std::string_view shape,
                                      const v1::Operand& operand, const HeldFields& held,
                                      const MatrixLayout& layout, int64_t batch, bool is_read) {
  if (operand.has_tensor()) return NoBytes();  // Resident bytes: see tensor_operands.h.
  ASSIGN_OR_RETURN(const ByteCount count, BytesOf(field, layout, batch));
  const bool is_given = operand.source_case() == v1::Operand::kData;
  if (!is_given && (!is_read || count.least == 0)) return NoBytes();
  FieldBytes bytes;
  if (is_given) bytes = FindBytes(operand, v1::Operand::kDataFieldNumber, operand.data(), held);
  const int64_t got = bytes.size();
  if (got < count.least || got > count.full) {
    return absl::InvalidArgumentError(Concat(field, ".data: got ", got, " bytes, want ",
                                             WantedBytes(shape, layout, batch, count)));
  }
  if (!is_read) return NoBytes();
  for (int64_t rest = got - count.least; rest > 0;) {
    Piece& last = bytes.pieces.back();
    const size_t cut = std::min(last.size(), static_cast<size_t>(rest));
    last.remove_suffix(cut);
    rest -= static_cast<int64_t>(cut);
    if (last.empty()) bytes.pieces.pop_back();
  }
  return bytes;
}

v1::ElementType ToWire(ElementType type) {
  return static_cast<v1::ElementType>(static_cast<int>(type) + 1);
}

}  // namespace gemmd
