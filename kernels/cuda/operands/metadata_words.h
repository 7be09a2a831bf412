// SPDX-License-Identifier: Apache-2.0
//
// The metadata of a sparse A, from the portable indices (sparse24.h) to the words of lanes;
// metadata.cu has the kernel. Functions are constexpr for nvcc; see element_codes.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/sparse_groups.h"
#include "kernels/mma/fragment.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

inline constexpr int kLanes = 32;

// The groups whose nibbles a lane holds in every step: each half of its word holds the nibbles of
// four groups of a row, from `group` on.
struct MetadataHalf {
  int row = -1;  // -1 if the half holds no groups.
  int group = 0;

  constexpr bool is_held() const { return row >= 0; }
};
struct MetadataLane {
  MetadataHalf halves[2];
};
// A word serves `steps` instructions along k; the selector of each is its number.
constexpr MetadataLane MetadataLaneOf(const mma::Instruction& instruction, int steps, int lane) {
  MetadataLane result;
  for (int selector = 0; selector < steps; ++selector) {
    for (int half = 0; half < 2; ++half) {
      const mma::MetadataGroup held = mma::MetadataGroupOf(instruction, selector, lane, 4 * half);
      if (!held.is_held) continue;
      result.halves[half] = {held.row, selector * mma::MetadataGroups(instruction) + held.group};
    }
  }
  return result;
}

// The work on all matrices of a sparse A.
struct MetadataJob {
  MetadataLane lanes[kLanes];
  int rows_of_tile = 0;                // Rows whose metadata a warp holds.
  bool has_two_indices = false;        // Each group has two indices, or else one.
  uint32_t nibbles_of_one_index = 0;   // For an index of 0 (lowest bits) and of 1.
  uint32_t nibble_beyond = 0;          // The nibble of groups beyond the matrix.
  const std::byte* indices = nullptr;  // The first line of the first matrix.
  // A step, which is one instruction along k or several that share words, takes 32 words. They are
  // ordered by step, then by tile of rows, then by matrix, except that the words of a lane for
  // 2^together_bits steps are contiguous.
  uint32_t* words = nullptr;
  int64_t index_line_bytes = 0;
  int64_t source_batch_stride = 0;  // In bytes.
  int64_t rows = 0;                 // Rows of the matrix.
  int64_t groups = 0;               // Groups of each row.
  int groups_of_step = 0;           // Groups of a row that a step takes: even.
  int64_t steps_of_bytes = 0;       // Steps whose groups are all in the matrix, two indices each.
  int64_t tiles = 0;                // Tiles down a matrix, as the kernel covers it.
  int64_t steps = 0;                // Steps along k.
  int64_t batch = 0;
  int together_bits = 0;
};

// The nibble of a group that keeps its places `low` and `high`, counted in units.
constexpr uint32_t NibbleOfPlaces(const mma::Instruction& instruction, const SparseForm& form,
                                  uint32_t low, uint32_t high) {
  const auto unit = static_cast<int>(form.unit);
  return mma::NibbleOf(mma::SparsityOf(instruction), static_cast<int>(low) * unit,
                       static_cast<int>(high) * unit + unit - 1);
}

// The nibbles of four groups of a row, from group `first` on, which is a multiple of four; the
// lowest bits hold the first nibble. Groups beyond the matrix keep the first places.
constexpr uint32_t FourNibblesOf(const MetadataJob& job, int64_t matrix, int64_t row,
                                 int64_t first) {
  const std::byte* line =
      job.indices + matrix * job.source_batch_stride + row * job.index_line_bytes;
  uint32_t nibbles = 0;
  for (int i = 0; i < 4; ++i) {
    const int64_t group = first + i;
    uint32_t nibble = job.nibble_beyond;
    if (row < job.rows && group < job.groups) {
      // The two stored indices of a group are its nibble.
      nibble = job.has_two_indices
                   ? LoadIndex(line, 2 * group) | LoadIndex(line, 2 * group + 1) << 2
                   : job.nibbles_of_one_index >> 4 * LoadIndex(line, group) & 0xf;
    }
    nibbles |= nibble << 4 * i;
  }
  return nibbles;
}

// Where a lane's indices for a tile of rows are.
struct LaneOfTile {
  MetadataLane lane;
  int64_t matrix = 0;
  int64_t tile = 0;
  // If the tile's rows are in the matrix and groups have two indices, the stored indices are the
  // nibbles: from `bytes` on, for `steps_of_bytes` steps. `masks` clear the nibbles that the lane
  // does not hold.
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

// The index of a lane's word of a step among those of its tile of rows.
constexpr int64_t PlaceOfWord(const MetadataJob& job, int64_t step, int lane) {
  const int bits = job.together_bits;
  const int64_t in_group = step & ((1 << bits) - 1);
  return (((step >> bits) * kLanes + lane) << bits) + in_group;
}

// Where the words of a tile start; each step has 32 words, one for each lane.
constexpr uint32_t* WordsOfTile(const MetadataJob& job, int64_t matrix, int64_t tile) {
  return job.words + (matrix * job.tiles + tile) * job.steps * kLanes;
}

}  // namespace gemmd
