// SPDX-License-Identifier: Apache-2.0
//
// Instructions that turn codes into 16-bit floats in registers, and wgmma with A in registers.
//
// Source: PTX ISA 9.0, sections 9.7.9.24 (cvt) and 9.7.15.5 (wgmma).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx/wgmma_ptx.cuh"
#include "kernels/mma/element_type.h"

namespace gemmd::ptx {

__device__ inline void LoadShared128(uint32_t shared, uint32_t (&words)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared)
               : "memory");
}

// Keeps the compiler from computing the value after this.
__device__ inline void DefineRegister(uint32_t& value) { asm volatile("" : "+r"(value)::"memory"); }

// (word & mask) | others.
__device__ inline uint32_t MergeBits(uint32_t word, uint32_t mask, uint32_t others) {
  uint32_t merged;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(merged) : "r"(word), "r"(mask), "r"(others));
  return merged;
}

// Pairs of f16 or bf16, the first in the low half.
template <ElementType kType>
__device__ inline uint32_t NarrowPair(float low, float high) {
  uint32_t pair;
  if constexpr (kType == ElementType::kF16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}
__device__ inline float WidenHalf(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
// The f16 nearest to a value.
__device__ inline uint16_t HalfOf(float value) {
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}
template <ElementType kType>
__device__ inline float2 WidenPair(uint32_t pair) {
  if constexpr (kType == ElementType::kF16) {
    return {WidenHalf(static_cast<uint16_t>(pair)), WidenHalf(static_cast<uint16_t>(pair >> 16))};
  } else {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff'0000)};
  }
}
template <ElementType kType>
__device__ inline uint32_t SubtractPairs(uint32_t x, uint32_t y) {
  uint32_t difference;
  if constexpr (kType == ElementType::kF16) {
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(x), "r"(y));
  } else {
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(difference) : "r"(x), "r"(y));
  }
  return difference;
}
template <ElementType kType>
__device__ inline uint32_t MultiplyPairs(uint32_t x, uint32_t y) {
  uint32_t product;
  if constexpr (kType == ElementType::kF16) {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
  } else {
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
  }
  return product;
}
// Adds A times B to the sums, or makes the product the sums if `adds` is false: `a` is the thread's
// fragment, which must not change before the products are done; `b` describes lines along k.
// clang-format off
#define GEMMD_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define GEMMD_16 GEMMD_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define GEMMD_32 GEMMD_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define GEMMD_EIGHT(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), \
  "+f"(sums[i + 4]), "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define GEMMD_8_SUMS GEMMD_EIGHT(0)
#define GEMMD_16_SUMS GEMMD_8_SUMS, GEMMD_EIGHT(8)
#define GEMMD_32_SUMS GEMMD_16_SUMS, GEMMD_EIGHT(16), GEMMD_EIGHT(24)
#define GEMMD_WGMMA_OF_REGISTERS(count, a0, a1, a2, a3, b_at, adds_at, name_at)                        \
  template <typename Source>                                                                          \
  __device__ inline void WgmmaOfRegisters(float (&sums)[count], const uint32_t (&a)[4], uint64_t b,    \
                                          bool adds) {                                                 \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #adds_at ", 0;\n%" #name_at " {" GEMMD_##count \
                 "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", adds, 1, 1, 0;\n}"          \
                 : GEMMD_##count##_SUMS                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)),    \
                   "C"(Mnemonic<Source>::kText));                                                      \
  }
// clang-format on
GEMMD_WGMMA_OF_REGISTERS(8, 8, 9, 10, 11, 12, 13, 14)
GEMMD_WGMMA_OF_REGISTERS(16, 16, 17, 18, 19, 20, 21, 22)
GEMMD_WGMMA_OF_REGISTERS(32, 32, 33, 34, 35, 36, 37, 38)

#undef GEMMD_WGMMA_OF_REGISTERS
#undef GEMMD_32_SUMS
#undef GEMMD_16_SUMS
#undef GEMMD_8_SUMS
#undef GEMMD_EIGHT
#undef GEMMD_32
#undef GEMMD_16
#undef GEMMD_8

}  // namespace gemmd::ptx
