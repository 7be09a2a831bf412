// SPDX-License-Identifier: Apache-2.0
//
// Repacks the metadata of a sparse A for the lanes of a kernel; see plan.h.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/row.h"
#include "kernels/problem.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Writes the metadata of a sparse A at plan.metadata_offset of `made`, on `stream`, without
// waiting: tile of kMetadataRows rows by tile, step by step, lane by lane (PlaceOfWord), where a
// step is StepsOfMetadata instructions along k, which are numbered by their selectors. Rows and
// groups beyond the matrix keep the first places. Errors: Internal as CUDA reports it.
absl::Status RepackMetadata(const CudaRow& row, const Problem& problem, const CudaPlan& plan,
                            const std::byte* a, std::byte* made, CUstream_st* stream);

}  // namespace gemmd
