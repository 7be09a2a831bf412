// SPDX-License-Identifier: Apache-2.0
//
// Elements of an f32 product whose sums are made in f64 (kernels/split_float.h).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device/epilogue/epilogue_alone.h"
#include "kernels/kernel.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Which elements: those that are marked, if there are any, or all of them.
struct ExactMarks {
  const uint32_t* any = nullptr;    // Null: all elements.
  const uint32_t* marks = nullptr;  // As SplitPlan has them.
  int64_t words_of_row = 0;
};

// Makes the sums of such elements on `stream`, without waiting. They go to `sums` where that has
// memory; otherwise the elements of D that they make are written, of f32, f16 or bf16.
// Errors: Internal as CUDA reports it.
absl::Status LaunchExactSums(const GemmArgs& args, const ExactMarks& marks,
                             const SumsInMemory& sums, CUstream_st* stream);

}  // namespace gemmd
