// SPDX-License-Identifier: Apache-2.0
//
// The parts of convert.h that concern one matrix of a request: its type, its layout and its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/problem.h"
#include "server/device/job.h"
#include "server/wire/held_fields.h"

namespace gemmd {

// The refusal of an unknown value of an enumeration: "field: got unknown value 9".
absl::Status UnknownValue(std::string_view field, int value);

// Errors: InvalidArgument for an unknown type, and for no type where there is no default.
absl::StatusOr<ElementType> ParseType(std::string_view field, v1::ElementType type,
                                      std::optional<ElementType> unspecified);
absl::StatusOr<Order> ParseOrder(std::string_view field, v1::Order order);
v1::ElementType ToWire(ElementType type);

// The parts of a layout that the wire's operands and outputs share.
struct Strides {
  int64_t leading_dimension;
  std::optional<int64_t> batch_stride;
};

template <typename Message>
Strides StridesOf(const Message& message) {
  return {message.leading_dimension(), message.has_batch_stride()
                                           ? std::optional<int64_t>(message.batch_stride())
                                           : std::nullopt};
}

// The layout of rows x columns elements.
// Errors: InvalidArgument for strides that are negative, too short or too large.
absl::StatusOr<MatrixLayout> ParseLayout(std::string_view field, ElementType type, Order order,
                                         int64_t rows, int64_t columns, const Strides& strides);

// The layout of an operand as it is used: rows x columns after the transposition, which becomes an
// exchange of the order.
// Errors: InvalidArgument as ParseLayout, and for a sparse operand that is not A, or not tight and
// row major.
absl::StatusOr<MatrixLayout> ParseOperandLayout(std::string_view field, const v1::Operand& operand,
                                                int64_t rows, int64_t columns,
                                                std::optional<ElementType> default_type);

// The bytes of a field where they lie: held apart from the message, or in it.
struct FieldBytes {
  PieceList pieces;
  PieceKeeper* keeper = nullptr;

  int64_t size() const;
};
// None, made in place: where an empty list is moved, GCC 12 warns of memory that is not set.
inline absl::StatusOr<FieldBytes> NoBytes() { return absl::StatusOr<FieldBytes>(absl::in_place); }
FieldBytes FindBytes(const google::protobuf::Message& message, int number,
                     const std::string& own_bytes, const HeldFields& held);

// The bytes of an operand without the last padding; none where the matrix is empty or not read.
// `shape` ("m*k") is for the message; where `is_read` is false the bytes may be left out. Errors:
// InvalidArgument where their count is not that of the layout.
absl::StatusOr<FieldBytes> ParseBytes(std::string_view field, std::string_view shape,
                                      const v1::Operand& operand, const HeldFields& held,
                                      const MatrixLayout& layout, int64_t batch, bool is_read);

}  // namespace gemmd
