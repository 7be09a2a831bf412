// SPDX-License-Identifier: Apache-2.0
//
// The metadata of a sparse A, from the portable indices (sparse24.h) to the words of lanes;
// metadata.cu has the kernel. Constexpr for the sake of nvcc; see packed_line.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/mma/instruction.h"
#include "kernels/mma/metadata.h"
#include "kernels/sparse24.h"
#include "kernels/sparse_unit.h"

namespace gemmd {

inline constexpr int kLanes = 32;

// Of which groups a lane holds the nibbles in every step: in each half of its word, of four from
// here on.
struct MetadataHalf {
  int row = -1;  // None.
  int group = 0;

  constexpr bool is_held() const { return row >= 0; }
};
struct MetadataLane {
  MetadataHalf halves[2];
};
constexpr MetadataLane MetadataLaneOf(const mma::Instruction& instruction, int lane) {
  MetadataLane result;
  for (int half = 0; half < 2; ++half) {
    const mma::MetadataGroup held = mma::MetadataGroupOf(instruction, 0, lane, 4 * half);
    if (!held.is_held) continue;
    result.halves[half] = {held.row, held.group};
  }
  return result;
}

// All matrices of a sparse A.
struct MetadataJob {
  MetadataLane lanes[kLanes];
  int rows_of_tile = 0;                // Of an instruction.
  bool has_two_indices = false;        // Of each group; or one.
  uint32_t nibbles_of_one_index = 0;   // The nibble for each value of one, 0 in the lowest bits.
  uint32_t nibble_beyond = 0;          // Of groups beyond the matrix.
  const std::byte* indices = nullptr;  // The first line of the first matrix.
  // What an instruction takes, 32 words: they follow each other step by step along k, tile of rows
  // by tile, matrix by matrix.
  uint32_t* words = nullptr;
  int64_t index_line_bytes = 0;
  int64_t source_batch_stride = 0;  // In bytes.
  int64_t rows = 0;                 // Of the matrix.
  int64_t groups = 0;               // Of each row.
  int groups_of_step = 0;           // Of each row, of an instruction: even.
  int64_t steps_of_bytes = 0;       // Whose groups are all in the matrix, with two indices each.
  int64_t tiles = 0;                // Down a matrix, as the kernel covers it.
  int64_t steps = 0;                // Along k.
  int64_t batch = 0;
};

// The nibble of a group that keeps places `low` and `high`, in units, of it.
constexpr uint32_t NibbleOfPlaces(const mma::Instruction& instruction, const SparseForm& form,
                                  uint32_t low, uint32_t high) {
  const auto unit = static_cast<int>(form.unit);
  return mma::NibbleOf(mma::SparsityOf(instruction), static_cast<int>(low) * unit,
                       static_cast<int>(high) * unit + unit - 1);
}

// The nibbles of four groups of a row, from `first`, a multiple of four, on; the first in the
// lowest bits. Groups beyond the matrix keep the places that come first.
constexpr uint32_t FourNibblesOf(const MetadataJob& job, int64_t matrix, int64_t row,
                                 int64_t first) {
  const std::byte* line =
      job.indices + matrix * job.source_batch_stride + row * job.index_line_bytes;
  uint32_t nibbles = 0;
  for (int i = 0; i < 4; ++i) {
    const int64_t group = first + i;
    uint32_t nibble = job.nibble_beyond;
    if (row < job.rows && group < job.groups) {
      // Two indices of a group are its nibble as they lie.
      nibble = job.has_two_indices
                   ? LoadIndex(line, 2 * group) | LoadIndex(line, 2 * group + 1) << 2
                   : job.nibbles_of_one_index >> 4 * LoadIndex(line, group) & 0xf;
    }
    nibbles |= nibble << 4 * i;
  }
  return nibbles;
}

// A lane's words of a tile of rows.
struct LaneOfTile {
  MetadataLane lane;
  int64_t matrix = 0;
  int64_t tile = 0;
  // Where its rows are in the matrix and groups have two indices, those are nibbles as they lie:
  // from these bytes on, for that many steps. A mask leaves out what the lane does not hold.
  const std::byte* bytes[2] = {nullptr, nullptr};
  uint32_t masks[2] = {0, 0};
  int64_t steps_of_bytes = 0;
};

constexpr LaneOfTile LaneOfTileOf(const MetadataJob& job, int64_t matrix, int64_t tile, int lane) {
  LaneOfTile result = {.lane = job.lanes[lane], .matrix = matrix, .tile = tile};
  if ((tile + 1) * job.rows_of_tile > job.rows) return result;
  result.steps_of_bytes = job.steps_of_bytes;
  const std::byte* first = job.indices + matrix * job.source_batch_stride +
                           tile * job.rows_of_tile * job.index_line_bytes;
  for (int half = 0; half < 2; ++half) {
    const MetadataHalf& held = result.lane.halves[half];
    result.bytes[half] =
        held.is_held() ? first + held.row * job.index_line_bytes + held.group / 2 : first;
    result.masks[half] = held.is_held() ? 0xffff : 0;
  }
  return result;
}

// Precondition: step < at.steps_of_bytes.
constexpr uint32_t WordOfIndexBytes(const MetadataJob& job, const LaneOfTile& at, int64_t step) {
  uint32_t halves[2] = {};
  for (int half = 0; half < 2; ++half) {
    const std::byte* two = at.bytes[half] + step * (job.groups_of_step / 2);
    halves[half] = std::to_integer<uint32_t>(two[0]) | std::to_integer<uint32_t>(two[1]) << 8;
  }
  return (halves[0] & at.masks[0]) | (halves[1] & at.masks[1]) << 16;
}

constexpr uint32_t WordOfGroups(const MetadataJob& job, const LaneOfTile& at, int64_t step) {
  uint32_t word = 0;
  for (int half = 0; half < 2; ++half) {
    const MetadataHalf& held = at.lane.halves[half];
    if (!held.is_held()) continue;
    word |= FourNibblesOf(job, at.matrix, at.tile * job.rows_of_tile + held.row,
                          step * job.groups_of_step + held.group)
            << 16 * half;
  }
  return word;
}

constexpr uint32_t WordOfStep(const MetadataJob& job, const LaneOfTile& at, int64_t step) {
  return step < at.steps_of_bytes ? WordOfIndexBytes(job, at, step) : WordOfGroups(job, at, step);
}

// Where lane 0's words of a tile are, 32 of each step.
constexpr uint32_t* WordsOfTile(const MetadataJob& job, int64_t matrix, int64_t tile) {
  return job.words + (matrix * job.tiles + tile) * job.steps * kLanes;
}

}  // namespace gemmd
