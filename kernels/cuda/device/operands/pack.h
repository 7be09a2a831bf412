// SPDX-License-Identifier: Apache-2.0
//
// Copies operands to the form that kernels need; see plan.h.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/row.h"
#include "kernels/problem.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// An operand whose plan says is_packed. Both addresses are aligned to 256 bytes.
struct PackedOperand {
  mma::Operand operand;
  const OperandPlan& plan;
  const std::byte* source;
  std::byte* made;
};

// Writes the packed lines of A, of B or of both (of a sparse A, its values) at plan.offset of
// `made`, on `stream`, without waiting: by one launch if both are packed alike. No byte after an
// operand's last one is read. Errors: Internal as CUDA reports it.
absl::Status PackOperands(const CudaRow& row, const Problem& problem,
                          absl::Span<const PackedOperand> operands, CUstream_st* stream);

}  // namespace gemmd
