// SPDX-License-Identifier: Apache-2.0
//
// How a GPU kernel gets its operands: in place, or from a copy in the workspace.
//
// A kernel reads lines along the axis of its row (LineAxisOf), in whole aligned 16-byte chunks;
// some rows have code for either axis (CanReadAcross). Operands that lie so are read in place;
// others are first packed into the workspace. The values of a sparse A are read as an operand, and
// its metadata is repacked for the lanes. If f32 are split, an operand is packed in two parts, the
// high halves of all lines before the low halves.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/row.h"
#include "kernels/problem.h"

namespace gemmd {

struct OperandPlan {
  bool is_packed = false;
  // Offset of the packed operand in the derived data.
  int64_t offset = 0;
  int64_t lines = 0;       // Rows of A or columns of B; or k if lines run along m or n.
  int64_t line_bytes = 0;  // Without padding: a packed line has zeros after these.
  int64_t line_stride_bytes = 0;
  int64_t batch_stride_bytes = 0;  // 0: one matrix for all.

  // The bytes of all lines of one matrix; of one part of it, if f32 are split.
  int64_t part_bytes() const { return lines * line_stride_bytes; }

  friend bool operator==(const OperandPlan&, const OperandPlan&) = default;
};

// Where a row of warpgroups leaves its sums, row major, for a D that it does not store itself.
struct SumsPlan {
  bool are_kept = false;
  int64_t line_stride_bytes = 0;
  int64_t batch_stride_bytes = 0;
};

// Additional data of a row that splits f32, all initially zero: a word that becomes nonzero if a
// sum has to be exact; one mark bit per element of D whose sum has to be exact, in whole words per
// row of each matrix; and, in the data derived from A and B, the ranges of their lines
// (MagnitudeRange), at the end for A and at the beginning for B.
struct SplitPlan {
  bool is_used = false;  // False if k is so short that all sums are exact.
  int64_t bytes = 0;     // Word and marks.
  int64_t marks_offset = 0;
  int64_t words_of_row = 0;
  int64_t a_ranges_offset = 0;
  int64_t b_ranges_bytes = 0;
};
// Ranges per matrix: padded to whole tiles, so that kernels need no bounds check.
constexpr int64_t RangesOf(int64_t lines) {
  constexpr int64_t kTile = 128;
  return (lines + kTile - 1) / kTile * kTile;
}

// Where the factors of blocks lie for a row that multiplies promoted sums by them: f32, for each
// promotion those of all rows of A, and those of all columns of B, padded to whole tiles, so that
// kernels need no bounds check. An operand without factors has ones.
struct FactorPlan {
  struct Lines {
    int64_t offset = 0;    // From the beginning of the factors.
    int64_t lines = 0;     // Padded rows or columns.
    int64_t matrices = 0;  // 1: one matrix for all.

    // Of a matrix, for so many promotions.
    int64_t floats(int64_t count) const { return lines * count; }
  };
  int64_t promotion_k = 0;
  int64_t promotions = 0;
  Lines a;
  Lines b;
  int64_t bytes = 0;  // 0: there are no factors.

  bool is_used() const { return bytes > 0; }
};

struct CudaPlan {
  OperandPlan a;  // For a sparse A, the plan of its values.
  OperandPlan b;
  // The metadata of a sparse A is at `metadata_offset` of its derived data: one word for each tile
  // of kMetadataRows rows, each StepsOfMetadata instructions along k and each lane, in this order.
  int64_t metadata_offset = 0;
  int64_t metadata_batch_stride_bytes = 0;
  SumsPlan sums;
  SplitPlan split;  // For rows that split f32.
  FactorPlan factors;
  // The workspace holds the data derived from A, then word and marks of the split or factors of
  // blocks, then the data derived from B, then sums. Derived data may be elsewhere (OperandForm),
  // and then takes no space.
  int64_t a_workspace_bytes = 0;
  int64_t b_workspace_bytes = 0;
  int64_t workspace_bytes = 0;

  // Where the data derived from B begins in the workspace.
  int64_t b_workspace_offset() const { return a_workspace_bytes + split.bytes + factors.bytes; }
};

// The axis along which the lines of a dense operand run in memory.
LineAxis AxisInMemory(mma::Operand operand, const MatrixLayout& layout);

// How a row computes a problem: directly, or as its transpose, whose D is the problem's D
// transposed. The transpose uses the row with the types of A and B swapped. `row.across` is as the
// operands lie in memory, if the row can read them so; `row.scales_sums` as the problem has factors
// of blocks.
struct Multiplication {
  CudaRow row;
  Problem problem;
  bool is_transposed = false;
};

// Narrow rows transpose a D that has fewer rows than columns. Wide warpgroup rows transpose a
// column-major D: its lines are then rows, which the copy engine can write. The exceptions are
// sparse rows, since B cannot be sparse, and rows that split f32, whose cross sums depend on which
// operand is A.
Multiplication MultiplicationOf(const CudaRow& row, const Problem& problem);

// Plans a valid problem that the row supports, as MultiplicationOf says; the plan is empty if
// nothing is multiplied. Errors: ResourceExhausted if the size of the workspace exceeds 63 bits.
absl::StatusOr<CudaPlan> PlanOf(const CudaRow& row, const Problem& problem);

}  // namespace gemmd
