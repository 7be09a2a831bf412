// SPDX-License-Identifier: Apache-2.0
//
// Element types as CUDA's libraries number them (library_types.h of the toolkit).
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/element.h"

namespace gemmd::bench {

// The numbers of cudaDataType_t that are needed here.
enum CudaDataType : int {
  kCudaR32F = 0,
  kCudaR64F = 1,
  kCudaR16F = 2,
  kCudaR8I = 3,
  kCudaR32I = 10,
  kCudaR16Bf = 14,
  kCudaR8FE4m3 = 28,
  kCudaR8FE5m2 = 29,
};

// Absent for types that no dense or sparse product of the libraries takes. tf32 is f32 to them.
constexpr std::optional<CudaDataType> CudaDataTypeOf(ElementType type) {
  switch (type) {
    case ElementType::kF64: return kCudaR64F;
    case ElementType::kF32:
    case ElementType::kTf32: return kCudaR32F;
    case ElementType::kF16: return kCudaR16F;
    case ElementType::kBf16: return kCudaR16Bf;
    case ElementType::kE4m3: return kCudaR8FE4m3;
    case ElementType::kE5m2: return kCudaR8FE5m2;
    case ElementType::kS8: return kCudaR8I;
    case ElementType::kS32: return kCudaR32I;
    default: return std::nullopt;
  }
}

// The largest power of two, 256 at most, that a pointer is a multiple of.
inline uint32_t AlignmentOf(const void* pointer) {
  uint32_t alignment = 256;
  while (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) alignment /= 2;
  return alignment;
}

}  // namespace gemmd::bench
