// SPDX-License-Identifier: Apache-2.0
//
// Instructions that turn codes into 16-bit floats in registers, and multiply these.
//
// Source: PTX ISA 9.0, sections 9.7.9.24 (cvt) and 9.7.14 (mma).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx/ptx.cuh"
#include "kernels/mma/element_type.h"

namespace gemmd::ptx {

__device__ inline void LoadShared128(uint32_t shared, uint32_t (&words)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared)
               : "memory");
}

// (word & mask) | others.
__device__ inline uint32_t MergeBits(uint32_t word, uint32_t mask, uint32_t others) {
  uint32_t merged;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(merged) : "r"(word), "r"(mask), "r"(others));
  return merged;
}

// Pairs of f16 or bf16, the first in the low half.
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
// Adds A times B to the four sums of a lane.
template <ElementType kType>
__device__ inline void Multiply16x8x16(float* sums, const uint32_t (&a)[4], uint32_t b0,
                                       uint32_t b1) {
  if constexpr (kType == ElementType::kF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace gemmd::ptx
