// SPDX-License-Identifier: Apache-2.0
//
// The wire's element types seen from C++: names, widths, and which C++ type holds which.
//
// f32 matrices are float and so on; types without a C++ type of their own (f16, bf16, the 8-, 6-
// and 4-bit floats, 4-bit integers, bits) travel as bytes, packed as proto/gemmd/v1/tensors.proto
// says.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// "f32", "bf16" ...; "unspecified" for ELEMENT_TYPE_UNSPECIFIED and values that this build does not
// know.
absl::string_view ElementTypeName(v1::ElementType type);

// The inverse, for the names of real types only.
std::optional<v1::ElementType> ParseElementType(absl::string_view name);

// Bits of one element; 0 for ELEMENT_TYPE_UNSPECIFIED and unknown values.
int ElementBits(v1::ElementType type);

// The C++ types that are an element type: double, float, int8_t, uint8_t, int32_t.
template <typename T>
concept NativeElement = std::is_same_v<T, double> || std::is_same_v<T, float> ||
    std::is_same_v<T, int8_t> || std::is_same_v<T, uint8_t> || std::is_same_v<T, int32_t>;

template <NativeElement T>
inline constexpr v1::ElementType kElementTypeOf =
    std::is_same_v<T, double>    ? v1::ELEMENT_TYPE_F64
    : std::is_same_v<T, float>   ? v1::ELEMENT_TYPE_F32
    : std::is_same_v<T, int8_t>  ? v1::ELEMENT_TYPE_S8
    : std::is_same_v<T, uint8_t> ? v1::ELEMENT_TYPE_U8
                                 : v1::ELEMENT_TYPE_S32;

}  // namespace gemmd
