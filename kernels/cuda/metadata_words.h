// SPDX-License-Identifier: Apache-2.0
//
// The metadata of a sparse A, from the portable indices (sparse24.h) to the words of lanes; pack.cu
// has the kernel. Constexpr for the sake of nvcc; see packed_line.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/mma/instruction.h"
#include "kernels/mma/metadata.h"
#include "kernels/sparse24.h"
#include "kernels/sparse_unit.h"

namespace gemmd {

inline constexpr int kLanes = 32;

// All matrices of a sparse A.
struct MetadataJob {
  mma::Instruction instruction;
  SparseForm form;
  const std::byte* indices = nullptr;  // The first line of the first matrix.
  uint32_t* words = nullptr;
  int64_t index_line_bytes = 0;
  int64_t source_batch_stride = 0;  // In bytes.
  int64_t rows = 0;                 // Of the matrix.
  int64_t groups = 0;               // Of each row.
  int64_t tiles = 0;                // Down a matrix, as the kernel covers it.
  int64_t steps = 0;                // Along k.
  int64_t batch = 0;
};

// What instruction `step` along k of row tile `tile` takes, 32 words.
struct MetadataPlace {
  int64_t matrix = 0;
  int64_t tile = 0;
  int64_t step = 0;
};

constexpr MetadataPlace MetadataPlaceOf(const MetadataJob& job, int64_t index) {
  const int64_t of_matrix = job.tiles * job.steps;
  const int64_t in_matrix = index % of_matrix;
  return {index / of_matrix, in_matrix / job.steps, in_matrix % job.steps};
}

// Pairs of a row and a group that the words hold.
constexpr int PairsOf(const mma::Instruction& instruction) {
  return instruction.m * mma::MetadataGroups(instruction);
}

struct PlacedNibble {
  int lane = 0;
  uint32_t bits = 0;  // In its place.
};

// One pair. Beyond the matrix the places that come first are kept.
constexpr PlacedNibble NibbleAt(const MetadataJob& job, const MetadataPlace& place, int pair) {
  const int groups = mma::MetadataGroups(job.instruction);
  const int row_in_tile = pair / groups;
  const int group_in_step = pair % groups;
  const int64_t row = place.tile * job.instruction.m + row_in_tile;
  const int64_t group = place.step * groups + group_in_step;
  const auto unit = static_cast<int>(job.form.unit);
  const auto kept = static_cast<int>(job.form.kept_units());
  int first = 0;
  int last = kept - 1;
  if (row < job.rows && group < job.groups) {
    const std::byte* line =
        job.indices + place.matrix * job.source_batch_stride + row * job.index_line_bytes;
    first = static_cast<int>(LoadIndex(line, group * kept));
    last = static_cast<int>(LoadIndex(line, group * kept + kept - 1));
  }
  const unsigned nibble =
      mma::NibbleOf(mma::SparsityOf(job.instruction), first * unit, last * unit + unit - 1);
  const mma::MetadataField field =
      mma::MetadataFieldOf(job.instruction, 0, row_in_tile, group_in_step);
  return {field.lane, nibble << field.first_bit};
}

}  // namespace gemmd
