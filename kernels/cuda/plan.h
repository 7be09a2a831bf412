// SPDX-License-Identifier: Apache-2.0
//
// How a kernel of a GPU gets its operands: as they lie, or from a copy in the workspace.
//
// A kernel reads lines along the axis that its instruction wants (row.h), whole chunks of 16 bytes
// that start on 16 bytes. Operands that lie so are read in place; any other one is
// first packed into the workspace. A sparse A is read as its values, and its metadata is repacked
// for the lanes.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/row.h"
#include "kernels/problem.h"

namespace gemmd {

struct OperandPlan {
  bool is_packed = false;
  // Where the kernel reads it: in the workspace where it is packed.
  int64_t offset = 0;
  int64_t lines = 0;       // Rows of A or columns of B, or k where lines lie the other way.
  int64_t line_bytes = 0;  // That hold elements; a packed line has zeros behind them.
  int64_t line_stride_bytes = 0;
  int64_t batch_stride_bytes = 0;  // 0: one matrix for all.

  friend bool operator==(const OperandPlan&, const OperandPlan&) = default;
};

struct CudaPlan {
  OperandPlan a;  // Of a sparse A: its values.
  OperandPlan b;
  // Of a sparse A: one word for each tile of instruction.m rows, instruction.k columns and lane,
  // in this order, at `metadata_offset` of the workspace.
  int64_t metadata_offset = 0;
  int64_t metadata_batch_stride_bytes = 0;
  // The workspace has first what is made of A, then what is made of B.
  int64_t a_workspace_bytes = 0;
  int64_t workspace_bytes = 0;
};

// How the lines of a dense operand lie.
LineAxis AxisInMemory(mma::Operand operand, const MatrixLayout& layout);

// Of a valid problem that the row supports; empty where nothing is multiplied.
// Errors: ResourceExhausted where the workspace leaves 63 bits.
absl::StatusOr<CudaPlan> PlanOf(const CudaRow& row, const Problem& problem);

}  // namespace gemmd
