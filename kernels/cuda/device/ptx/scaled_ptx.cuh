// SPDX-License-Identifier: Apache-2.0
//
// PTX instructions with block factors along k; see ptx.cuh. A word has one factor for each block,
// low bits first. In a quad of lanes, the word of the first lane counts for B, those of the first
// two lanes for A: as selected by their selectors of 0.
//
// Source: PTX ISA 9.0, section 9.7.14.3.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx/ptx.cuh"

namespace gemmd::ptx {

template <typename Source>
__device__ inline void MmaScaled(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                 uint32_t a_factors, uint32_t b_factors) {
  asm("%12 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, %10, {0, 0}, %11, "
      "{0, 0};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(a_factors),
        "r"(b_factors), "C"(Mnemonic<Source>::kText));
}

template <typename Source>
__device__ inline void MmaSparseScaled(float (&c)[4], const uint32_t (&a)[4],
                                       const uint32_t (&b)[4], uint32_t metadata,
                                       uint32_t a_factors, uint32_t b_factors) {
  asm("%15 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x0, "
      "%13, {0, 0}, %14, {0, 0};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
        "r"(metadata), "r"(a_factors), "r"(b_factors), "C"(Mnemonic<Source>::kText));
}

}  // namespace gemmd::ptx
