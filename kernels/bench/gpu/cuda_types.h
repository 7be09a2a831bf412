// SPDX-License-Identifier: Apache-2.0
//
// Element types as CUDA's libraries name them.
#pragma once

#include <library_types.h>

#include <optional>

#include "kernels/matrix/element.h"

namespace gemmd::bench {

// Absent for types that the libraries' products do not support. For them, tf32 is f32.
constexpr std::optional<cudaDataType_t> CudaDataTypeOf(ElementType type) {
  switch (type) {
    case ElementType::kF64: return CUDA_R_64F;
    case ElementType::kF32:
    case ElementType::kTf32: return CUDA_R_32F;
    case ElementType::kF16: return CUDA_R_16F;
    case ElementType::kBf16: return CUDA_R_16BF;
    case ElementType::kE4m3: return CUDA_R_8F_E4M3;
    case ElementType::kE5m2: return CUDA_R_8F_E5M2;
    case ElementType::kS8: return CUDA_R_8I;
    case ElementType::kS32: return CUDA_R_32I;
    default: return std::nullopt;
  }
}

}  // namespace gemmd::bench
