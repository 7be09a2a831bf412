// SPDX-License-Identifier: Apache-2.0
//
// Splits f32 operands into two f16 parts (kernels/matrix/split_float.h).
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/row.h"
#include "kernels/matrix/split_float.h"
#include "kernels/problem.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Writes both parts of the lines of A or B at plan.offset of `made`, and the lines' ranges
// (initially zeros), RangesOf(plan.lines) per matrix, on `stream`, without waiting. `plan` is that
// of the operand and says is_packed.
//
// Operands and `made` are aligned to 256 bytes; no byte after an operand's last one is read.
// Errors: Internal as CUDA reports it.
absl::Status SplitOperand(const CudaRow& row, mma::Operand operand, const Problem& problem,
                          const OperandPlan& plan, const std::byte* source, std::byte* made,
                          MagnitudeRange* ranges, CUstream_st* stream);

}  // namespace gemmd
