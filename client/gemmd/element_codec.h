// SPDX-License-Identifier: Apache-2.0
//
// Converts between values and bit patterns of matrix elements, as proto/gemmd/v1/tensors.proto
// defines them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "gemmd/wire_types.h"

namespace gemmd {

// The value of the element in the low bits of `pattern`. A double holds every value of every type.
double ElementValue(v1::ElementType type, uint64_t pattern);

// The bit pattern of the element nearest to `value`, rounded as OutputSpec.type says: ties to even;
// overflow becomes infinity (f64, f32, tf32, f16, bf16) or the largest finite value; integers
// saturate. NaN becomes the NaN of its sign whose other bits are all ones, the value of its sign
// with the largest magnitude of a float type that lacks NaN, and 0 of an integer type.
uint64_t ElementPattern(v1::ElementType type, double value);

// Whether `value` exceeds the type's finite range by so much that it would not round to the largest
// or lowest finite value if the type had further values beyond it. True for infinities, false for
// NaN.
bool ExceedsRange(v1::ElementType type, double value);

// ElementValue(ElementPattern(value)): the value that D holds for an exact result of `value`.
double RoundToElement(v1::ElementType type, double value);

// Whether the type is floating-point; false for integers, including b1.
bool IsFloat(v1::ElementType type);

// Whether a float type has a NaN; false for integers.
bool HasNan(v1::ElementType type);

// Reads and writes the bit pattern at `index` of a packed line.
uint64_t LoadElement(v1::ElementType type, absl::string_view line, int64_t index);
void StoreElement(v1::ElementType type, uint64_t pattern, int64_t index, char* line);

}  // namespace gemmd
