// SPDX-License-Identifier: Apache-2.0
//
// Values of matrix elements: what a pattern of bits stands for, and the pattern nearest to a value.
//
// Written from the definitions in proto/gemmd/v1/tensors.proto alone and on purpose without a line
// in common with the server's own conversions: a mistake made twice would go unseen.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "gemmd/wire_types.h"

namespace gemmd {

// The value of an element whose pattern is the low bits of `pattern`. Every type fits a double.
double ElementValue(v1::ElementType type, uint64_t pattern);

// The pattern of the element nearest to `value`, as OutputSpec.type says: ties to even; overflow
// gives infinity (f32, tf32, f16, bf16) or the largest finite value; integers saturate and take NaN
// for 0. NaN in a float type without one gives its largest value.
uint64_t ElementPattern(v1::ElementType type, double value);

// Whether `value` lies so far beyond the largest or least finite value of the type that it would
// not round to that one if the type went on. True for infinities, false for NaN.
bool ExceedsRange(v1::ElementType type, double value);

// ElementValue(ElementPattern(value)): what D holds where the product is `value`.
double RoundToElement(v1::ElementType type, double value);

// Whether the elements are floating-point numbers; false for integers, b1 among them.
bool IsFloat(v1::ElementType type);

// Whether a float type has a NaN; false for integers.
bool HasNan(v1::ElementType type);

// The pattern at `index` of a packed line, and its writing; `line` is zero there before.
uint64_t LoadElement(v1::ElementType type, absl::string_view line, int64_t index);
void StoreElement(v1::ElementType type, uint64_t pattern, int64_t index, char* line);

}  // namespace gemmd
