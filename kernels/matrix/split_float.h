// SPDX-License-Identifier: Apache-2.0
//
// f32 products on tensor cores, which lack f32: every element is split into two f16 values, and the
// tensor core multiplies three of their four pairs.
//
// A line is a row of A or a column of B. It is scaled by the power of two that brings its largest
// magnitude to [2^14, 2^15). Then x = high + low / 2^12, where high = f16(x) and low = f16((x -
// high) * 2^12), with an error of at most 2^-23 of x. An element of A B is
//   main + cross / 2^12, scaled back,
// where main sums high * high and is promoted (promotion.h) every kSplitPromotionK of k, and cross
// is one chain of instructions, which take low * high and then high * low of the same k. Sums of
// low * low, at most 2^-22 of a product, are left out.
//
// Elements of D for which this is inaccurate are instead summed in f64, by fused multiply-adds in
// ascending k, and rounded to f32: elements with a line for which SplitLine::fits is false;
// elements with a line that is not whole, if the sum is so small that the lost bits matter
// (NeedsExactSum); and all elements if k is less than kSplitPromotionK, because a short f32 sum has
// a smaller error than the split. So an element of D depends only on its row of A and its column of
// B, as with any recipe. With u = 2^-24 it is at most 8 u (the split) + 40 u (four instructions) +
// (k / 64 + 2) u of the sum of all |products| away from the exact one, which is within the k u of a
// sum in f32.
//
// Source: H. Ootomo, R. Yokota, "Recovering single precision accuracy from Tensor Cores while
// surpassing the FP32 theoretical peak performance", 2022; scaling and exact sums are gemmd's.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/matrix/element_codes.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

inline constexpr int kSplitPromotionK = 64;  // Recipe::promotion_k of main.
inline constexpr int kSplitTopExponent =
    14;  // Exponent of a line's largest magnitude, after scaling.
inline constexpr float kSplitLowScale = 0x1p12F;
inline constexpr float kSplitLowWeight = 1 / kSplitLowScale;

// Whether products of depth k split their elements.
constexpr bool IsSplit(int64_t k) { return k >= kSplitPromotionK; }

// Whether split f32 products have rows with the instruction: GPU rows for its tiles, and the
// smallest instruction for the simulator.
constexpr bool HasSplitRows(const mma::Instruction& instruction) {
  return instruction.is_warpgroup() && !instruction.is_sparse() &&
         instruction.a == ElementType::kF16 && instruction.b == ElementType::kF16 &&
         instruction.d == ElementType::kF32 &&
         (instruction.n == 128 || instruction.n == 64 || instruction.n == 8);
}

// The magnitudes of a line, as the bits of f32. Starts at zero; both numbers grow as elements are
// included.
struct alignas(8) MagnitudeRange {
  uint32_t largest = 0;
  uint32_t smallest = 0;  // All ones less the smallest magnitude that is not zero.

  // The range of a single element with these bits.
  static constexpr MagnitudeRange Of(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7fffffff;
    return {magnitude, magnitude == 0 ? 0 : ~magnitude};
  }
  constexpr void Include(const MagnitudeRange& other) {
    if (other.largest > largest) largest = other.largest;
    if (other.smallest > smallest) smallest = other.smallest;
  }
};

struct SplitLine {
  int exponent = 0;  // Exponent of the largest magnitude.
  bool fits =
      true;  // The line is finite, and not so small that a scaled product could be subnormal.
  bool is_whole = true;  // The two f16 parts represent every element to within 2^-23 of it.

  // The factor that scales the line before the split.
  constexpr float scale() const { return Wide<float>::Power(kSplitTopExponent - exponent); }
};

constexpr SplitLine SplitLineOf(const MagnitudeRange& range) {
  constexpr int kInfinite = 255;      // Exponents as f32 has them, from 0 on.
  constexpr int kMin = 127 - 100;     // The halves of two lines' scales are normal numbers then.
  constexpr int kMaxDistance = 28;    // The quantum of low is 2^-36, so that is what 2^-14 loses.
  if (range.largest == 0) return {};  // All elements are zero.
  const int largest = static_cast<int>(range.largest >> 23);
  const int smallest = static_cast<int>(~range.smallest >> 23);
  SplitLine line;
  line.fits = largest >= kMin && largest < kInfinite;
  if (line.fits) line.exponent = largest - Wide<float>::kBias;
  line.is_whole = largest - smallest <= kMaxDistance;
  return line;
}

// Conversions to and from f16; kernels use the GPU's own.
struct PortableF16 {
  static constexpr uint32_t Encode(float x) { return EncodeCode<ElementType::kF16>(x); }
  static constexpr float Decode(uint32_t code) {
    return DecodeNarrowFloat<ElementType::kF16>(code);
  }
};

struct SplitElement {
  uint32_t high = 0;  // Codes of f16.
  uint32_t low = 0;
};
template <typename Conversions>
constexpr SplitElement SplitOf(float x, float scale) {
  const float scaled = x * scale;
  SplitElement element;
  element.high = Conversions::Encode(scaled);
  element.low = Conversions::Encode((scaled - Conversions::Decode(element.high)) * kSplitLowScale);
  return element;
}

constexpr float JoinSplitSums(float main, float cross) { return main + cross * kSplitLowWeight; }

// Undoes the scaling of a sum, in two factors, so that each factor is a normal number.
constexpr float ScaleBack(float sum, const SplitLine& a, const SplitLine& b) {
  const int exponent = a.exponent + b.exponent - 2 * kSplitTopExponent;
  const int half = exponent >> 1;
  return sum * Wide<float>::Power(half) * Wide<float>::Power(exponent - half);
}

// Whether an element of D must be summed in f64, given its joined sum before it is scaled back. A
// line that is not whole may have lost 2^-37 per element, times up to 2^15 from the other line; a
// sum of at least k has then lost less than 2^-21 of itself.
constexpr bool NeedsExactSum(const SplitLine& a, const SplitLine& b, float sum, int64_t k) {
  if (!a.fits || !b.fits) return true;
  if (a.is_whole && b.is_whole) return false;
  const float magnitude = sum < 0 ? -sum : sum;
  return !(magnitude >= static_cast<float>(k));
}

}  // namespace gemmd
