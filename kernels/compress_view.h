// SPDX-License-Identifier: Apache-2.0
//
// Pruning and compressing in one pass: the portable sparse form (sparse24.h) of dense matrices that
// are read as they lie and stay as they are. The bytes are those that Prune (prune24.h) or
// KeepMarked (mask24.h) and then Compress give. One implementation for the host and for the threads
// of cuda/device/operands/sparse24.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/bad_group.h"
#include "kernels/mask_groups.h"
#include "kernels/prune_groups.h"
#include "kernels/sparse_groups.h"

namespace gemmd {

// Row-major matrices, one after the other. All lines of all of them are counted: those of the
// second matrix follow those of the first.
struct CompressView {
  SparseLayout layout;  // Describes one matrix.
  const std::byte* dense = nullptr;
  int64_t dense_line_stride_bytes = 0;
  int64_t dense_matrix_stride_bytes = 0;
  // A bit for each element that is kept; null: the units of the largest magnitude are.
  const std::byte* mask = nullptr;
  int64_t mask_line_stride_bytes = 0;
  int64_t mask_matrix_stride_bytes = 0;
  std::byte* compressed = nullptr;  // Without gaps.
  int64_t first_line = 0;           // These lines, and the byte of indices of each span of groups.
  int64_t end_line = 0;
};

// The elements of the units of the largest magnitude.
template <typename Form>
constexpr uint64_t LargestOf(const SparseJob& job, uint64_t elements) {
  const uint32_t kept = LargestUnits<Form>(job, elements);
  uint64_t mask = 0;
  for (int i = 0; i < Form::kGroupUnits; ++i) {
    if ((kept >> i & 1) != 0) mask |= uint64_t{Form::kUnitMask} << i * Form::kUnitBits;
  }
  return elements & mask;
}

// Prunes and compresses the groups of one byte of indices of a line. Returns the first group of
// which the mask marks more units than may be kept: its number, counted over all lines, with how
// many it marks. Its values then mean nothing.
template <typename Form>
constexpr BadGroup CompressSpanOfView(const CompressView& view, int64_t line, int64_t span) {
  const SparseLayout& layout = view.layout;
  const int64_t matrix = line / layout.rows;
  const int64_t row = line % layout.rows;
  const std::byte* const dense =
      view.dense + matrix * view.dense_matrix_stride_bytes + row * view.dense_line_stride_bytes;
  const std::byte* const mask =
      view.mask == nullptr
          ? nullptr
          : view.mask + matrix * view.mask_matrix_stride_bytes + row * view.mask_line_stride_bytes;
  // Groups are looked for in the line alone, which is read and not written.
  const SparseJob job =
      SparseJobOf(layout, const_cast<std::byte*>(dense), view.compressed + matrix * layout.bytes);
  BadGroup bad = kNoBadGroup;
  CompressGroups<Form>(job, row, span, [&](int64_t group) {
    const uint64_t elements = LoadElements(PlaceOf<Form>(job, 0, group));
    if (mask == nullptr) return LargestOf<Form>(job, elements);
    const MarkedGroup marked = MarkedGroupOf<Form>(layout, mask, group);
    if (marked.units > Form::kKeptUnits && bad == kNoBadGroup) {
      bad = MakeBadGroup(line * layout.groups + group, static_cast<uint32_t>(marked.units));
    }
    return elements & marked.elements;
  });
  return bad;
}

// The lines of the view, on the calling thread. Returns the first bad group.
BadGroup CompressLines(const CompressView& view);

// The refusal of a mask that marks too much, which is found at this group of several matrices.
absl::Status RefuseMask(const SparseLayout& layout, int64_t matrices, BadGroup bad);

}  // namespace gemmd
