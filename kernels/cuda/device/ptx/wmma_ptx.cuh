// SPDX-License-Identifier: Apache-2.0
//
// Instructions of wmma; see ptx.cuh. wmma itself loads fragments of A and B; those of C and D are
// as described in kernels/mma/fragment.h, as observed on sm_90.
#pragma once

#include "kernels/cuda/device/ptx/ptx.cuh"

namespace gemmd::ptx {

// Lines are `stride` elements apart in shared memory and start on multiples of 32 bytes.

template <typename Source>
__device__ inline void WmmaLoad(uint32_t (&words)[1], uint32_t shared, int stride) {
  asm volatile("%3 {%0}, [%1], %2;"
               : "=r"(words[0])
               : "r"(shared), "r"(stride), "C"(Mnemonic<Source>::kText)
               : "memory");
}

template <typename Source>
__device__ inline void WmmaLoad(uint32_t (&words)[2], uint32_t shared, int stride) {
  asm volatile("%4 {%0, %1}, [%2], %3;"
               : "=r"(words[0]), "=r"(words[1])
               : "r"(shared), "r"(stride), "C"(Mnemonic<Source>::kText)
               : "memory");
}

template <typename Source>
__device__ inline void WmmaLoad(uint32_t (&words)[4], uint32_t shared, int stride) {
  asm volatile("%6 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared), "r"(stride), "C"(Mnemonic<Source>::kText)
               : "memory");
}

template <typename Source>
__device__ inline void WmmaLoad(uint32_t (&words)[8], uint32_t shared, int stride) {
  asm volatile("%10 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]), "=r"(words[4]),
                 "=r"(words[5]), "=r"(words[6]), "=r"(words[7])
               : "r"(shared), "r"(stride), "C"(Mnemonic<Source>::kText)
               : "memory");
}

template <typename Source>
__device__ inline void WmmaLoad(double (&words)[1], uint32_t shared, int stride) {
  asm volatile("%3 {%0}, [%1], %2;"
               : "=d"(words[0])
               : "r"(shared), "r"(stride), "C"(Mnemonic<Source>::kText)
               : "memory");
}

// D and C are the same registers, or have different types.

template <typename Source>
__device__ inline void Mma(float (&c)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
  asm("%24 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, "
      "%18, %19, %20, %21, %22, %23}, {%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
        "+f"(c[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]),
        "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]),
        "C"(Mnemonic<Source>::kText));
}

template <typename Source>
__device__ inline void Mma(uint32_t (&c)[4], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
  asm("%20 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15, %16, %17, "
      "%18, %19}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]),
        "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]),
        "C"(Mnemonic<Source>::kText));
}

template <typename Source>
__device__ inline void Mma(float (&c)[8], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  asm("%16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, "
      "%2, %3, %4, %5, %6, %7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
        "+f"(c[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
        "C"(Mnemonic<Source>::kText));
}

template <typename Source>
__device__ inline void Mma(float (&c)[8], const uint32_t (&a)[2], const uint32_t (&b)[8]) {
  asm("%18 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13, %14, %15, %16, %17}, "
      "{%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
        "+f"(c[7])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]),
        "r"(b[6]), "r"(b[7]), "C"(Mnemonic<Source>::kText));
}

template <typename Source>
__device__ inline void Mma(float (&c)[8], const uint32_t (&a)[8], const uint32_t (&b)[2]) {
  asm("%18 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17}, "
      "{%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
        "+f"(c[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]),
        "r"(b[0]), "r"(b[1]), "C"(Mnemonic<Source>::kText));
}

template <typename Source>
__device__ inline void Mma(uint32_t (&c)[8], const uint32_t (&a)[2], const uint32_t (&b)[2]) {
  asm("%12 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, {%0, %1, %2, %3, %4, %5, %6, "
      "%7};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]), "+r"(c[4]), "+r"(c[5]), "+r"(c[6]),
        "+r"(c[7])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "C"(Mnemonic<Source>::kText));
}

template <typename Source>
__device__ inline void Mma(uint32_t (&c)[8], const uint32_t (&a)[1], const uint32_t (&b)[4]) {
  asm("%13 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8}, {%9, %10, %11, %12}, {%0, %1, %2, %3, %4, %5, "
      "%6, %7};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]), "+r"(c[4]), "+r"(c[5]), "+r"(c[6]),
        "+r"(c[7])
      : "r"(a[0]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "C"(Mnemonic<Source>::kText));
}

template <typename Source>
__device__ inline void Mma(uint32_t (&c)[8], const uint32_t (&a)[4], const uint32_t (&b)[1]) {
  asm("%13 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, {%12}, {%0, %1, %2, %3, %4, %5, "
      "%6, %7};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]), "+r"(c[4]), "+r"(c[5]), "+r"(c[6]),
        "+r"(c[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "C"(Mnemonic<Source>::kText));
}

template <typename Source>
__device__ inline void Mma(float (&d)[8], const uint32_t (&a)[8], const uint32_t (&b)[8],
                           const uint32_t (&c)[4]) {
  asm("%28 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, "
      "%18, %19, %20, %21, %22, %23}, {%24, %25, %26, %27};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]),
        "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]),
        "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "C"(Mnemonic<Source>::kText));
}

template <typename Source>
__device__ inline void Mma(uint32_t (&d)[4], const uint32_t (&a)[8], const uint32_t (&b)[8],
                           const float (&c)[8]) {
  asm("%28 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15, %16, %17, "
      "%18, %19}, {%20, %21, %22, %23, %24, %25, %26, %27};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]),
        "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]),
        "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]), "f"(c[4]), "f"(c[5]), "f"(c[6]), "f"(c[7]),
        "C"(Mnemonic<Source>::kText));
}

}  // namespace gemmd::ptx
