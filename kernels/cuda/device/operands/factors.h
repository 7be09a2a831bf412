// SPDX-License-Identifier: Apache-2.0
//
// Lays factors of blocks out for kernels that multiply promoted sums by them; see FactorPlan.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/cuda/plan.h"
#include "kernels/problem.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Writes the factors of A and B, decoded, at the offsets of the plan from `made`, on `stream`,
// without waiting. `a` and `b` are null if the operand has no factors; f32 factors are aligned to 4
// bytes. Errors: Internal as CUDA reports it.
absl::Status LayOutFactors(const Problem& problem, const FactorPlan& plan, const std::byte* a,
                           const std::byte* b, std::byte* made, CUstream_st* stream);

}  // namespace gemmd
