// SPDX-License-Identifier: Apache-2.0
//
// Gathers of elements (kernels/matrix/element_gather.h) on a GPU, several by one launch.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/matrix/element_gather.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

inline constexpr size_t kMaxGathers = 8;

// Gathers at most kMaxGathers on `stream`, without waiting. Everything that they point to is in
// memory of the current GPU; no copy overlaps anything else.
absl::Status GatherOnStream(absl::Span<const ElementGather> gathers, CUstream_st* stream);

}  // namespace gemmd
