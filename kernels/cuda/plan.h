// SPDX-License-Identifier: Apache-2.0
//
// How a GPU kernel gets its operands: in place, or from a copy in the workspace.
//
// A kernel reads lines along the axis that its instruction wants (row.h), in whole chunks of 16
// bytes that start on multiples of 16 bytes. Operands that lie so are read in place; any other
// operand is first packed into the workspace. A sparse A is read as its values, and its metadata is
// repacked for the lanes. Where f32 are split, an operand is packed in two parts, the high halves
// of all its lines before the low ones.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/row.h"
#include "kernels/problem.h"

namespace gemmd {

struct OperandPlan {
  bool is_packed = false;
  // Where the packed operand starts in what is made of it.
  int64_t offset = 0;
  int64_t lines = 0;       // Rows of A or columns of B, or k where lines lie the other way.
  int64_t line_bytes = 0;  // Without padding: a packed line has zeros after these.
  int64_t line_stride_bytes = 0;
  int64_t batch_stride_bytes = 0;  // 0: one matrix for all.

  // The bytes of all lines of one matrix; of one part of it, where f32 are split.
  int64_t part_bytes() const { return lines * line_stride_bytes; }

  friend bool operator==(const OperandPlan&, const OperandPlan&) = default;
};

// Where a row of warpgroups leaves its sums, row major, for a D that it does not store itself.
struct SumsPlan {
  bool are_kept = false;
  int64_t line_stride_bytes = 0;
  int64_t batch_stride_bytes = 0;
};

// What a row that splits f32 has beside the parts of operands. All of it starts as zeros: a word
// that is not zero once a sum has to be exact; a bit for each element of D whose sum has to be, in
// whole words for each row of each matrix; and, in what is made of A and of B, the ranges of their
// lines (MagnitudeRange). Those of A end it, and those of B begin it.
struct SplitPlan {
  bool is_used = false;  // Not where k is so short that all sums are exact.
  int64_t bytes = 0;     // Word and marks.
  int64_t marks_offset = 0;
  int64_t words_of_row = 0;
  int64_t a_ranges_offset = 0;
  int64_t b_ranges_bytes = 0;
};
// Ranges that a matrix has: whole tiles, so that a kernel need not ask for the last line.
constexpr int64_t RangesOf(int64_t lines) {
  constexpr int64_t kTile = 128;
  return (lines + kTile - 1) / kTile * kTile;
}

struct CudaPlan {
  OperandPlan a;  // For a sparse A, the plan of its values.
  OperandPlan b;
  // The metadata of a sparse A is at `metadata_offset` of what is made of it: one word for each
  // tile of kMetadataRows rows, each StepsOfMetadata instructions along k and each lane, in this
  // order.
  int64_t metadata_offset = 0;
  int64_t metadata_batch_stride_bytes = 0;
  SumsPlan sums;
  SplitPlan split;  // For rows that split f32.
  // The workspace holds what is made of A, then word and marks of the split, then what is made of
  // B, then sums. What is made of an operand may be elsewhere (OperandForm), and takes no room
  // then.
  int64_t a_workspace_bytes = 0;
  int64_t b_workspace_bytes = 0;
  int64_t workspace_bytes = 0;
};

// The axis along which the lines of a dense operand lie in memory.
LineAxis AxisInMemory(mma::Operand operand, const MatrixLayout& layout);

// How a row multiplies a problem: as it is, or as the transpose whose D is the problem's D
// transposed. The transpose takes the row whose types of A and B are the other way round.
struct Multiplication {
  const CudaRow& row;
  Problem problem;
  bool is_transposed = false;
};

// Narrow rows transpose a D that has fewer rows than columns. Wide rows of warpgroups transpose a D
// in columns: its lines are then rows, which the copy engine writes from registers. The exceptions
// are sparse rows, since B cannot be sparse, and rows that split f32, whose cross sums depend on
// which operand is A.
Multiplication MultiplicationOf(const CudaRow& row, const Problem& problem);

// Plans a valid problem that the row supports, as MultiplicationOf says; the plan is empty where
// nothing is multiplied.
// Errors: ResourceExhausted where the size of the workspace does not fit into 63 bits.
absl::StatusOr<CudaPlan> PlanOf(const CudaRow& row, const Problem& problem);

}  // namespace gemmd
