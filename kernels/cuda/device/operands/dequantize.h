// SPDX-License-Identifier: Apache-2.0
//
// Dequantizes operands on a GPU (kernels/dequantize.h).
#pragma once

#include "absl/status/status.h"
#include "kernels/dequantize.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Does the job on `stream`, without waiting. The target is aligned to 16 bytes, and f32 factors to
// 4; no byte from job.source_end on is read. Errors: Internal as CUDA reports it.
absl::Status DequantizeOnStream(const DequantizeJob& job, CUstream_st* stream);

}  // namespace gemmd
