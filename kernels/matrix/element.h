// SPDX-License-Identifier: Apache-2.0
//
// Exact decoding and correctly rounded encoding of elements.
//
// Elements narrower than a byte are packed low bits first along a line, and every line starts on a
// byte: element i of a line of w-bit elements takes bits i*w .. i*w+w-1 of the line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/mma/element_type.h"

namespace gemmd {

std::optional<ElementType> ElementTypeFromName(std::string_view name);

// The exact value of one element. `bits` holds the element in its low BitsOf(type) bits; the low 13
// bits of a tf32 word are ignored.
double Decode(ElementType type, uint64_t bits);

// The element nearest to `value`, ties to even, in the low BitsOf(type) bits.
//
// Overflow gives infinity for f64, f32, tf32, f16 and bf16 and the largest finite value for e4m3,
// e5m2, e3m2, e2m3 and e2m1 (infinity included), as PTX `cvt.satfinite` does. NaN gives the
// positive NaN whose bits are all ones if the type has a NaN (in tf32 all but the low 13), the
// largest finite value for e3m2, e2m3 and e2m1, and 0 for integers. Integers saturate.
uint64_t Encode(ElementType type, double value);

// Reads or writes element `index` of a packed line.
uint64_t LoadBits(ElementType type, const std::byte* line, int64_t index);
void StoreBits(ElementType type, std::byte* line, int64_t index, uint64_t bits);

// Decodes a packed line of `count` elements. Target must hold every value of `type` exactly: float
// holds any type up to 16 bits wide, tf32, f32 and integers up to 8 bits; double holds any type.
// These are the bulk paths: f16, bf16 and types of at most 8 bits do not go through Decode.
void DecodeLine(ElementType type, const std::byte* line, int64_t count, float* values);
void DecodeLine(ElementType type, const std::byte* line, int64_t count, double* values);

// Encodes a line, each value as Encode does. Bits after the last element in the line's last byte
// become 0.
void EncodeLine(ElementType type, const float* values, int64_t count, std::byte* line);
void EncodeLine(ElementType type, const double* values, int64_t count, std::byte* line);

}  // namespace gemmd
