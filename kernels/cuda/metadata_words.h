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

// What instruction `step` along k of row tile `tile` takes, 32 words: they follow each other step
// by step, tile by tile, matrix by matrix.
struct MetadataPlace {
  int64_t matrix = 0;
  int64_t tile = 0;
  int64_t step = 0;
};

// The nibbles of `count` groups from `first` on of a row, the first in the lowest bits. Groups
// beyond the matrix keep the places that come first.
constexpr uint32_t NibblesOf(const MetadataJob& job, int64_t matrix, int64_t row, int64_t first,
                             int count) {
  const std::byte* line =
      job.indices + matrix * job.source_batch_stride + row * job.index_line_bytes;
  const auto unit = static_cast<int>(job.form.unit);
  const auto kept = static_cast<int>(job.form.kept_units());
  uint32_t nibbles = 0;
  for (int i = 0; i < count; ++i) {
    int low = 0;
    int high = kept - 1;
    if (row < job.rows && first + i < job.groups) {
      low = static_cast<int>(LoadIndex(line, (first + i) * kept));
      high = static_cast<int>(LoadIndex(line, (first + i) * kept + kept - 1));
    }
    nibbles |= mma::NibbleOf(mma::SparsityOf(job.instruction), low * unit, high * unit + unit - 1)
               << 4 * i;
  }
  return nibbles;
}

// The same of four groups from a multiple of four on. Two indices of a group are its nibble as they
// lie.
constexpr uint32_t FourNibblesOf(const MetadataJob& job, int64_t matrix, int64_t row,
                                 int64_t first) {
  if (job.form.kept_units() != 2 || row >= job.rows || first + 4 > job.groups) {
    return NibblesOf(job, matrix, row, first, 4);
  }
  const std::byte* bytes =
      job.indices + matrix * job.source_batch_stride + row * job.index_line_bytes + first / 2;
  return std::to_integer<uint32_t>(bytes[0]) | std::to_integer<uint32_t>(bytes[1]) << 8;
}

constexpr uint32_t WordAt(const MetadataJob& job, const MetadataPlace& place, int lane) {
  const int groups = mma::MetadataGroups(job.instruction);
  uint32_t word = 0;
  for (int half = 0; half < 2; ++half) {
    const mma::MetadataGroup held = mma::MetadataGroupOf(job.instruction, 0, lane, 4 * half);
    if (!held.is_held) continue;
    word |= FourNibblesOf(job, place.matrix, place.tile * job.instruction.m + held.row,
                          place.step * groups + held.group)
            << 16 * half;
  }
  return word;
}

}  // namespace gemmd
