// SPDX-License-Identifier: Apache-2.0
//
// The wire's element types seen from C++: names, widths, and which C++ type holds which.
//
// f32 matrices are float and so on; storage_types.h has C++ types for f16, bf16 and the 8-bit
// floats; all others (6- and 4-bit floats, 4-bit integers, bits) travel as bytes, packed as
// proto/gemmd/v1/tensors.proto says.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "gemmd/wire_types.h"

namespace gemmd {

// "f32", "bf16" ...; "unspecified" for the type unspecified and values that this build does not
// know.
absl::string_view ElementTypeName(v1::ElementType type);

// The inverse, for the names of real types only.
std::optional<v1::ElementType> ParseElementType(absl::string_view name);

// Bits of one element; 0 for the type unspecified and unknown values.
int ElementBits(v1::ElementType type);

// A C++ type that says itself which element it is: those of storage_types.h, or the caller's own.
// Its bytes are the element's.
template <typename T>
concept DeclaredElement = requires {
  { T::kElementType } -> std::convertible_to<v1::ElementType>;
};

// The C++ types that are an element type: double, float, int8_t, uint8_t, int32_t, declared ones.
template <typename T>
concept NativeElement =
    std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, int8_t> ||
    std::is_same_v<T, uint8_t> || std::is_same_v<T, int32_t> || DeclaredElement<T>;

template <NativeElement T>
constexpr v1::ElementType ElementTypeOf() {
  if constexpr (DeclaredElement<T>) {
    return T::kElementType;
  } else if constexpr (std::is_same_v<T, double>) {
    return v1::kF64;
  } else if constexpr (std::is_same_v<T, float>) {
    return v1::kF32;
  } else if constexpr (std::is_same_v<T, int8_t>) {
    return v1::kS8;
  } else if constexpr (std::is_same_v<T, uint8_t>) {
    return v1::kU8;
  } else {
    return v1::kS32;
  }
}

template <NativeElement T>
inline constexpr v1::ElementType kElementTypeOf = ElementTypeOf<T>();

}  // namespace gemmd
