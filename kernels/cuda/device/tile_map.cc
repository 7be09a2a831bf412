// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/tile_map.h"

#include <cuda.h>

#include <cstring>

#include "kernels/cuda/device/runtime.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

static_assert(sizeof(TileMap) == sizeof(CUtensorMap) && alignof(TileMap) >= alignof(CUtensorMap));

// Looks up a driver function through the runtime, so that nothing is linked with the driver.
template <typename Function>
absl::StatusOr<Function> FindInDriver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kSince = 12000;
  RETURN_IF_ERROR(CudaStatus(
      cudaGetDriverEntryPointByVersion(name, &function, kSince, cudaEnableDefault, &result), name));
  if (result != cudaDriverEntryPointSuccess) {
    return absl::InternalError(Concat(name, ": the driver has none"));
  }
  return reinterpret_cast<Function>(function);
}

// The swizzle that TileLines::SwizzleOf describes.
CUtensorMapSwizzle SwizzleOf(const TileBox& box) {
  if (!box.is_swizzled) return CU_TENSOR_MAP_SWIZZLE_NONE;
  switch (box.line_bytes) {
    case 32: return CU_TENSOR_MAP_SWIZZLE_32B;
    case 64: return CU_TENSOR_MAP_SWIZZLE_64B;
    default: return CU_TENSOR_MAP_SWIZZLE_128B;
  }
}

}  // namespace

absl::StatusOr<TileMap> TileMapOf(const OperandLines& operand, const TileBox& box, int64_t batch) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const absl::StatusOr<Encode> encode = FindInDriver<Encode>("cuTensorMapEncodeTiled");
  RETURN_IF_ERROR(encode.status());
  const bool is_shared = operand.batch_stride_bytes == 0;
  const int line_bytes =
      (operand.line_bytes + box.line_multiple - 1) / box.line_multiple * box.line_multiple;
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(line_bytes / box.element_bytes),
                                static_cast<cuuint64_t>(operand.lines),
                                static_cast<cuuint64_t>(is_shared ? 1 : batch)};
  const cuuint64_t strides[] = {
      static_cast<cuuint64_t>(operand.line_stride_bytes),
      static_cast<cuuint64_t>(is_shared ? operand.line_stride_bytes : operand.batch_stride_bytes)};
  const cuuint32_t elements[] = {static_cast<cuuint32_t>(box.line_bytes / box.element_bytes),
                                 static_cast<cuuint32_t>(box.lines), 1};
  const cuuint32_t steps[] = {1, 1, 1};
  const CUtensorMapDataType type = box.element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : box.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                            : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  CUtensorMap map;
  const CUresult result =
      (*encode)(&map, type, 3, const_cast<std::byte*>(operand.data), extents, strides, elements,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, SwizzleOf(box),
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return absl::InternalError(Concat("cuTensorMapEncodeTiled: error ", static_cast<int>(result),
                                      " for ", operand.lines, " lines of ", operand.line_bytes,
                                      " bytes every ", operand.line_stride_bytes));
  }
  TileMap copy;
  std::memcpy(&copy, &map, sizeof(copy));
  return copy;
}

absl::Status MoveTileMap(const void* data, TileMap& map) {
  using Replace = decltype(&cuTensorMapReplaceAddress);
  static const absl::StatusOr<Replace> replace = FindInDriver<Replace>("cuTensorMapReplaceAddress");
  RETURN_IF_ERROR(replace.status());
  const CUresult result = (*replace)(reinterpret_cast<CUtensorMap*>(&map), const_cast<void*>(data));
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(Concat("cuTensorMapReplaceAddress: error ", static_cast<int>(result)));
}

}  // namespace gemmd
