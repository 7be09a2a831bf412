// SPDX-License-Identifier: Apache-2.0
//
// Element types of the wire in C++: their names, their widths and the C++ types that hold them.
//
// An f32 matrix holds `float`, and so on. storage_types.h has C++ types for f16, bf16 and the 8-bit
// floats. All other types (6- and 4-bit floats, 4-bit integers, bits) are packed bytes, as
// proto/gemmd/v1/tensors.proto says.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "gemmd/wire_types.h"

namespace gemmd {

// "f32", "bf16" and so on; "unspecified" for the unspecified type and for values unknown to this
// build.
absl::string_view ElementTypeName(v1::ElementType type);

// The inverse of ElementTypeName; nullopt for "unspecified" and unknown names.
std::optional<v1::ElementType> ParseElementType(absl::string_view name);

// Bits per element; 0 for the unspecified type and unknown values.
int ElementBits(v1::ElementType type);

// A C++ type that declares its element type (kElementType): those of storage_types.h, or the
// caller's own. Its bytes are those of the element.
template <typename T>
concept DeclaredElement = requires {
  { T::kElementType } -> std::convertible_to<v1::ElementType>;
};

// C++ types that hold one element: double, float, int8_t, uint8_t, int32_t and DeclaredElement
// types.
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
