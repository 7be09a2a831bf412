// SPDX-License-Identifier: Apache-2.0
//
// The words of KServe for element types. It has none for most of the narrow ones, which travel as
// bytes.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/element.h"
#include "kserve/v2/inference.pb.h"

namespace gemmd {

// The datatype in which elements travel: FP32 for f32 and tf32, UINT8 for all that has no other.
std::string_view DatatypeOf(ElementType type);
inference::DataType ConfigDatatypeOf(ElementType type);

// Whether the datatype alone tells the type.
bool IsToldByDatatype(ElementType type);

// How many of the datatype's values a row of so many elements takes: as many, or its bytes where
// these are narrower than a byte.
int64_t RowExtent(ElementType type, int64_t elements);

// The type of an input: what its datatype tells, or `name`, gemmd's name of it, where that is not
// empty. `field` is the input: "inputs[0]". Where neither a name is given nor another type is
// meant, bytes are elements of `own`.
// Errors: InvalidArgument a datatype that no type travels in, or not this one.
absl::StatusOr<ElementType> ParseInputType(std::string_view field, std::string_view datatype,
                                           std::string_view name, std::optional<ElementType> own);

// The type that gemmd's own messages name; theirs is one that there is.
ElementType TypeOfWire(v1::ElementType type);

// A type by gemmd's name, or by that of a datatype. Errors: InvalidArgument.
absl::StatusOr<ElementType> ParseTypeName(std::string_view field, std::string_view name);

}  // namespace gemmd
