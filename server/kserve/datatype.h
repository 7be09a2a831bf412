// SPDX-License-Identifier: Apache-2.0
//
// The words of KServe for element types, and elements that came as numbers of a message, not as
// bytes. KServe has no word for most of the narrow types, which travel as bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/element.h"
#include "kserve/v2/inference.pb.h"
#include "server/wire/incoming.h"

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

// Numbers that have to be decoded one by one, of all inputs of a request.
inline constexpr int64_t kMostDecodedBytes = int64_t{16} << 10;

// The most bytes of elements that a byte of such numbers becomes.
inline constexpr int64_t kDecodedGrowth = 4;

// Where numbers lie on the wire as the bytes of their elements, which is how every encoder has FP32
// and FP64: removes what is around them, and returns whether it did.
bool StripPackedFloats(std::string_view datatype, ReceivedSlices& contents);

// The elements of an InferTensorContents as bytes. `field` is the input's. Errors: InvalidArgument
// numbers of another datatype's field, or beyond its range; FP16 and BF16 have no field.
absl::StatusOr<std::string> DecodeContents(std::string_view field, std::string_view datatype,
                                           ReceivedSlices& contents);

}  // namespace gemmd
