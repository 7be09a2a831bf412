// SPDX-License-Identifier: Apache-2.0
//
// Copies operands to the form that kernels need; see plan.h.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/row.h"
#include "kernels/problem.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Writes the packed lines of A or B (of a sparse A, its values) at plan.offset of `made`, on
// `stream`, without waiting. `plan` is that of the operand and says is_packed.
//
// Operands and `made` are aligned to 256 bytes; no byte after an operand's last one is read.
// Errors: Internal as CUDA reports it.
absl::Status PackOperand(const CudaRow& row, mma::Operand operand, const Problem& problem,
                         const OperandPlan& plan, const std::byte* source, std::byte* made,
                         CUstream_st* stream);

}  // namespace gemmd
