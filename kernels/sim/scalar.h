// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of one output element of one instruction, written to be compared with the
// specification in kernels/mma/arithmetic.h. The vector code must agree with it bit for bit.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/mma/arithmetic.h"
#include "kernels/sim/number.h"

namespace gemmd::sim {

// One product of a fused sum, scaled by 2^exponent.
struct Product {
  Number a;
  Number b;
  int exponent = 0;  // The exponent of its block's factors (mxf8f6f4).
  bool has_nan_factor = false;
};

// Adds a block of products and an addend; addend and result are in the format of the sum (f32 or
// f16).
uint32_t FusedSum(const mma::Arithmetic& arithmetic, std::span<const Product> products,
                  uint32_t addend);

// The exact sum of a group of products whose factors are not powers of two only.
struct ScaledGroup {
  int64_t sum = 0;  // In units of 2^-fraction_bits, signed.
  int fraction_bits = 0;
  int exponent = 0;  // The exponent of the factors, as they are stored.
  bool is_nan = false;
};

// Adds groups and an f32 addend.
uint32_t SumOfGroups(const mma::Arithmetic& arithmetic, std::span<const ScaledGroup> groups,
                     uint32_t addend);

// Adds four products and an addend as m8n8k4 without a tensor core does: in the type of the sum, in
// IEEE f32.
uint32_t MultiplyAdds(ElementType sum, std::span<const uint32_t, 4> a_f16,
                      std::span<const uint32_t, 4> b_f16, uint32_t addend);

// One step of an f64 chain in the current rounding mode: addend + a b, fused. A NaN operand is
// returned, made quiet: b rather than the addend, the addend rather than a.
uint64_t MultiplyAddF64(uint64_t a, uint64_t b, uint64_t addend);

// Sums of f32 and f16, rounded to nearest even, with the one NaN.
uint32_t AddF32(uint32_t x, uint32_t y);
uint32_t AddF16(uint32_t x, uint32_t y);

// The addend plus an exact sum, modulo 2^32 or clamped once.
uint32_t AddInteger(int64_t exact, uint32_t addend, bool saturates);

// Sets the rounding mode of f64 for as long as it lives.
class ScopedRounding {
 public:
  explicit ScopedRounding(mma::Rounding rounding);
  ~ScopedRounding();
  ScopedRounding(const ScopedRounding&) = delete;
  ScopedRounding& operator=(const ScopedRounding&) = delete;

 private:
  int restored_;
};

}  // namespace gemmd::sim
