// SPDX-License-Identifier: Apache-2.0
//
// The epilogue as a separate kernel: for problems without a product (k or alpha is 0), and for sums
// that a kernel has left in memory.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Sums of every element of D, row major, aligned to 16 bytes.
struct SumsInMemory {
  const std::byte* data = nullptr;  // Null: all are zero, since there is no product.
  int64_t line_stride_bytes = 0;
  int64_t batch_stride_bytes = 0;
};

// Writes D on `stream`, without waiting. `args` is as for LaunchOnStream (launch.h); `accumulators`
// is the type that the kernel would have: f32, f64 or s32.
// Errors: Internal as CUDA reports it.
absl::Status LaunchEpilogueAlone(const GemmArgs& args, ElementType accumulators,
                                 const SumsInMemory& sums, CUstream_st* stream);

}  // namespace gemmd
