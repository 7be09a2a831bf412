// SPDX-License-Identifier: Apache-2.0
//
// The groups whose instructions have only the small tile: wmma, and instructions that are not
// native on sm_90.
#pragma once

#include "kernels/cuda/tiles.h"

namespace gemmd {

struct SmallTileAlone {
  static constexpr RowShapes Of(const mma::Instruction&) { return {}; }
};

template <>
struct GroupTiles<CudaGroup::kMmaFp8> : SmallTileAlone {};
template <>
struct GroupTiles<CudaGroup::kMmaInt4> : SmallTileAlone {};
template <>
struct GroupTiles<CudaGroup::kMmaNarrow> : SmallTileAlone {};
template <>
struct GroupTiles<CudaGroup::kMmaQuads> : SmallTileAlone {};
template <>
struct GroupTiles<CudaGroup::kMmaScaled> : SmallTileAlone {};
template <>
struct GroupTiles<CudaGroup::kSparseInt4> : SmallTileAlone {};
template <>
struct GroupTiles<CudaGroup::kSparseNarrow> : SmallTileAlone {};
template <>
struct GroupTiles<CudaGroup::kSparseScaled> : SmallTileAlone {};
template <>
struct GroupTiles<CudaGroup::kWmmaF16> : SmallTileAlone {};
template <>
struct GroupTiles<CudaGroup::kWmmaOthers> : SmallTileAlone {};

}  // namespace gemmd
