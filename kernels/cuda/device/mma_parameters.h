// SPDX-License-Identifier: Apache-2.0
//
// The argument of every kernel of mma, wmma and wgmma.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/epilogue.h"
#include "kernels/matrix/abort.h"
#include "kernels/matrix/split_float.h"

namespace gemmd {

// An operand's lines, in place or packed. A line has less than 2 GiB.
struct OperandLines {
  const std::byte* data;
  int64_t batch_stride_bytes;
  int lines;
  int line_bytes;
  int line_stride_bytes;
};

// The description of an operand that the driver encodes for the copy engine; see tile_map.h.
struct alignas(128) TileMap {
  uint64_t words[16];
};

// For a row that splits f32: where the ranges of its lines are, and where it marks sums that have
// to be exact (SplitPlan).
struct SplitParameters {
  const MagnitudeRange* a_ranges;
  const MagnitudeRange* b_ranges;
  int64_t a_ranges_of_matrix;  // 0: one matrix for all.
  int64_t b_ranges_of_matrix;
  uint32_t* any;
  uint32_t* marks;
  int64_t words_of_row;
  int64_t k;
};

// For a row that multiplies promoted sums by factors of blocks (FactorPlan).
struct FactorParameters {
  const float* a;
  const float* b;
  int64_t a_of_matrix;  // Floats; 0: one matrix for all.
  int64_t b_of_matrix;
  int64_t a_lines;  // Floats from one promotion to the next.
  int64_t b_lines;
  bool are_columns_shared;  // ColumnsOfFactor columns have the same factor.
};

struct MmaParameters {
  // The maps are set only for rows that use the copy engine. Each block of a cluster copies its
  // part of B's tile.
  TileMap a_map;
  TileMap b_map;
  TileMap metadata_map;
  OperandLines a;
  OperandLines b;
  const uint32_t* metadata;  // From RepackMetadata; null for a dense A.
  int64_t metadata_batch_stride_words;
  int metadata_steps;  // The words that a lane has for one tile of rows.
  int steps;           // The number of instructions along k.
  int tiles_m;
  int tiles_n;
  int tiles_k;
  int64_t first_batch;  // The first matrix of this launch.
  AbortWord abort;
  EpilogueParameters epilogue;

  // For warpgroup rows: the tiles of all matrices, and the blocks that share them. They store D, or
  // sums in the workspace.
  TileMap d_map;
  int tiles;
  int blocks;
  ElementType stored_type;
  float stored_alpha;
  // Whether warpgroups apply the epilogue to their sums before they store them (FitsRegisters).
  bool finishes_sums;

  SplitParameters split;  // For rows that split f32.
  FactorParameters factors;
};

}  // namespace gemmd
