// SPDX-License-Identifier: Apache-2.0
//
// Groups of rows. The code of each group is compiled alone (kernels/cuda/device/CMakeLists.txt), so
// that all are compiled side by side. Every instruction belongs to exactly one group of rows that
// multiply its own types without promotion; some also have promoted rows and split-f32 rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matrix/split_float.h"
#include "kernels/mma/instruction.h"
#include "kernels/promotion.h"

namespace gemmd {

enum class CudaGroup : uint8_t {
  kMmaBits,            // mma with b1.
  kMmaF16,             // mma with f16 and bf16.
  kMmaF64,             // mma with f64.
  kMmaFp8,             // mma with e4m3 and e5m2.
  kMmaInt4,            // mma with s4 and u4.
  kMmaInt8,            // mma with s8 and u8.
  kMmaNarrow,          // mma with any float type of at most 8 bits, in bytes (kind::f8f6f4).
  kMmaQuads,           // mma.m8n8k4 with f16, four products at once.
  kMmaScaled,          // mma with factors of blocks along k (kinds mxf8f6f4, mxf4, mxf4nvf4).
  kMmaTf32,            // mma with tf32.
  kSparseFloats,       // mma.sp with f16, bf16, tf32, e4m3 and e5m2.
  kSparseInt4,         // mma.sp with s4 and u4.
  kSparseInt8,         // mma.sp with s8 and u8.
  kSparseNarrow,       // mma.sp with narrow floats in bytes, and with fp8 where the sums are f16.
  kSparseScaled,       // mma.sp with factors of blocks along k (kinds mxf8f6f4, mxf4, mxf4nvf4).
  kWmmaF16,            // wmma with f16.
  kWmmaOthers,         // wmma with every type but f16.
  kWgmmaF16,           // wgmma with f16 and bf16.
  kWgmmaFp8,           // wgmma with e4m3 and e5m2.
  kWgmmaInt8,          // wgmma with s8 and u8; of b1 there are no rows.
  kWgmmaTf32,          // wgmma with tf32.
  kWgmmaSparseFloats,  // wgmma.sp with f16, bf16 and tf32.
  kWgmmaSparseBytes,   // wgmma.sp with e4m3, e5m2, s8 and u8.
  kPromoted,           // All instructions with e4m3 and e5m2 whose sums are promoted.
  kSplit,              // wgmma with f16, for split f32.
};
inline constexpr size_t kCudaGroups = static_cast<size_t>(CudaGroup::kSplit) + 1;

// The group of rows without promotion or split f32.
constexpr CudaGroup GroupOf(const mma::Instruction& instruction) {
  using enum CudaGroup;
  const ElementType a = instruction.a;
  if (instruction.family == mma::Family::kWmma)
    return a == ElementType::kF16 ? kWmmaF16 : kWmmaOthers;
  const bool is_sparse = instruction.is_sparse();
  if (instruction.is_warpgroup()) {
    if (is_sparse) return BitsOf(a) >= 16 ? kWgmmaSparseFloats : kWgmmaSparseBytes;
    if (IsInteger(a)) return kWgmmaInt8;
    if (a == ElementType::kTf32) return kWgmmaTf32;
    return BitsOf(a) == 16 ? kWgmmaF16 : kWgmmaFp8;
  }
  if (instruction.scales > 0) return is_sparse ? kSparseScaled : kMmaScaled;
  if (a == ElementType::kB1) return kMmaBits;
  if (IsInteger(a)) {
    if (BitsOf(a) == 4) return is_sparse ? kSparseInt4 : kMmaInt4;
    return is_sparse ? kSparseInt8 : kMmaInt8;
  }
  if (is_sparse) {
    const bool is_late = instruction.kind == mma::Kind::kF8f6f4 || instruction.min_target > 90;
    return is_late ? kSparseNarrow : kSparseFloats;
  }
  if (instruction.kind == mma::Kind::kF8f6f4) return kMmaNarrow;
  if (instruction.products() > 1) return kMmaQuads;
  if (a == ElementType::kF64) return kMmaF64;
  if (a == ElementType::kTf32) return kMmaTf32;
  return BitsOf(a) == 16 ? kMmaF16 : kMmaFp8;
}

constexpr bool HasRowsIn(CudaGroup group, const mma::Instruction& instruction) {
  if (group == CudaGroup::kPromoted) return HasPromotedRows(instruction);
  if (group == CudaGroup::kSplit) return HasSplitRows(instruction);
  return GroupOf(instruction) == group;
}

}  // namespace gemmd
