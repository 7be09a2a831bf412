// SPDX-License-Identifier: Apache-2.0
//
// The portable form of a sparse matrix: half of every group along k is kept, the rest is zero.
//
//   type                          unit                     group      kept         called
//   f16 bf16, 8-bit, 6-bit        1 element                4 units    2 units      2:4
//   s4 u4 e2m1                    2 adjacent elements      4 units    2 units      4:8, by pairs
//   f32 tf32                      1 element                2 units    1 unit       1:2
//
// b1, s32 and f64 have no such form. An m x k matrix has ceil(k / group) groups in each row;
// elements of the last group beyond k count as zero. The bytes of a matrix, without gaps:
//
//   - m lines of values: the kept units, group by group, packed as any line is (element.h). A group
//     always has its number of kept units; zeros are kept if fewer units are nonzero.
//   - m lines of indices: for each kept unit its place in its group in 2 bits, low bits first, each
//     line starting on a byte. Inside a group the indices increase; those of 1:2 are 0 or 1.
//
// Elements at a k beyond the matrix are zero. Bits after the last element or index of a line have
// no meaning; Compress sets them to 0. Zero means zero of either sign (in tf32, whatever its low 13
// bits are): the sign of a zero need not survive compression.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/matrix/abort.h"
#include "kernels/matrix/element.h"

namespace gemmd {

// The form of a type's groups: one row of the table at the top of this file.
struct SparseForm {
  int64_t unit = 1;         // Elements that are kept or dropped together.
  int64_t group_units = 4;  // Units of a group; half of them are kept.

  constexpr int64_t kept_units() const { return group_units / 2; }
  constexpr int64_t group() const { return group_units * unit; }     // Elements along k.
  constexpr int64_t index_bits() const { return 2 * kept_units(); }  // For one group.
  // "2:4", "4:8" or "1:2".
  constexpr std::string_view name() const {
    if (unit == 2) return "4:8";
    return group_units == 4 ? "2:4" : "1:2";
  }
};

// Absent for types without a sparse form.
constexpr std::optional<SparseForm> SparseFormOf(ElementType type) {
  switch (type) {
    case ElementType::kF32:
    case ElementType::kTf32: return SparseForm{.unit = 1, .group_units = 2};
    case ElementType::kF16:
    case ElementType::kBf16:
    case ElementType::kE4m3:
    case ElementType::kE5m2:
    case ElementType::kE3m2:
    case ElementType::kE2m3:
    case ElementType::kS8:
    case ElementType::kU8: return SparseForm{.unit = 1, .group_units = 4};
    case ElementType::kE2m1:
    case ElementType::kS4:
    case ElementType::kU4: return SparseForm{.unit = 2, .group_units = 4};
    case ElementType::kF64:
    case ElementType::kB1:
    case ElementType::kS32: return std::nullopt;
  }
  return std::nullopt;
}

// The layout of a matrix, both compressed and dense (row major, without gaps).
struct SparseLayout {
  ElementType type = ElementType::kF32;
  int64_t rows = 0;     // m
  int64_t columns = 0;  // k of the dense matrix.
  SparseForm form;
  int64_t groups = 0;  // In each row.
  int64_t value_line_bytes = 0;
  int64_t index_line_bytes = 0;
  int64_t dense_line_bytes = 0;
  int64_t bytes = 0;        // The size of the compressed matrix.
  int64_t dense_bytes = 0;  // The size of the dense matrix.

  constexpr int64_t kept() const { return groups * (form.group() / 2); }  // Elements in each row.
  constexpr int64_t values_offset(int64_t row) const { return row * value_line_bytes; }
  constexpr int64_t indices_offset(int64_t row) const {
    return rows * value_line_bytes + row * index_line_bytes;
  }
};

// The layout of a rows x columns matrix, both 0 or more.
// Errors: InvalidArgument for a type without a sparse form, and if a size exceeds 63 bits. `field`
// names the matrix ("a").
absl::StatusOr<SparseLayout> SparseLayoutOf(std::string_view field, ElementType type, int64_t rows,
                                            int64_t columns);

// Checks what Expand and the kernels rely on: indices increase in every group, and what they place
// beyond k is zero. Once the flag is set, the rest is not checked. Errors: InvalidArgument for the
// first bad group; `field` names the bytes ("a.data"): "a.data: row 3, group 17: got indices 2, 2,
// want increasing".
absl::Status CheckCompressed(std::string_view field, const SparseLayout& layout,
                             const std::byte* compressed, AbortFlag abort = nullptr);

// The same for the rows from `first_row` to `end_row` alone, both within the matrix.
absl::Status CheckCompressedRows(std::string_view field, const SparseLayout& layout,
                                 const std::byte* compressed, int64_t first_row, int64_t end_row,
                                 AbortFlag abort = nullptr);

// Writes the dense matrix; bits after the last element of a line become 0. Compressed bytes that
// CheckCompressed refuses give an arbitrary matrix, without access outside either buffer. Once the
// flag is set, the rest is left as it is.
// Threads: parallel inside, on the calling thread's OpenMP threads, if the matrix is large.
void Expand(const SparseLayout& layout, const std::byte* compressed, std::byte* dense,
            AbortFlag abort = nullptr);

// Writes the dense column of each kept element of a row, in order: kept() numbers, which increase.
// A column at or beyond `columns` holds a zero.
void KeptColumns(const SparseLayout& layout, const std::byte* compressed, int64_t row,
                 int64_t* columns);

// Checks that a dense matrix can be compressed without loss: no group has more nonzero units than
// it may keep.
// Errors: InvalidArgument for the first bad group:
// "a.data: row 0, group 2: got 3 nonzero elements, want at most 2".
absl::Status CheckPruned(std::string_view field, const SparseLayout& layout,
                         const std::byte* dense);

// Compresses a dense matrix. If a group has fewer nonzero units than are kept, zeros at its lowest
// other places are kept too. A unit that is kept because it is nonzero keeps all its bits; any
// other becomes +0.
// Errors: those of CheckPruned; some of `compressed` may have been written by then.
absl::Status Compress(std::string_view field, const SparseLayout& layout, const std::byte* dense,
                      std::byte* compressed);

// The result of a check: the first bad group, counted along rows and then down, and what is wrong
// with it; kNoBadGroup if all groups are valid.
using BadGroup = uint64_t;
inline constexpr BadGroup kNoBadGroup = ~uint64_t{0};

// `detail` has 8 bits and is never 0. For a dense group it is the number of nonzero units; for a
// compressed one, kIsIndices and the indices, or kIsBeyond and the place in the group of a nonzero
// element beyond the matrix.
constexpr BadGroup MakeBadGroup(int64_t position, uint32_t detail) {
  return static_cast<uint64_t>(position) << 8 | detail;
}
inline constexpr uint32_t kIsBeyond = 0x80;
inline constexpr uint32_t kIsIndices = 0x40;

// The errors with which CheckPruned and CheckCompressed report a bad group.
absl::Status PrunedRefusal(std::string_view field, const SparseLayout& layout, BadGroup bad);
absl::Status CompressedRefusal(std::string_view field, const SparseLayout& layout, BadGroup bad);

// Pruning sets the smallest elements of a dense matrix to +0, so that it can be compressed.
//
// Elements are compared by magnitude; NaN is larger than infinity. The magnitude of several
// elements is the sum of their magnitudes, in f64. Among equals, the one at the lower index is
// kept. Kept elements keep their bits.

// Keeps the largest units of every group along k.
//
// Returns how many nonzero elements became zero.
int64_t PruneByMagnitude(const SparseLayout& layout, std::byte* dense);

// Prunes so that the transposed matrix is sparse in the same form too, as training needs. Every
// square tile of one group by one group keeps as many units in each column of units as in each row;
// the choice with the largest magnitude is taken (of 90 for a tile of 2:4, of 2 for one of 1:2). A
// unit here is unit x unit elements: 1, or 2 x 2 for the types kept by pairs. A tile at the edge
// counts as filled up with zeros. Among equals, the choice whose first row keeps the lower indices
// is taken, then the one whose second row does.
//
// Returns how many nonzero elements became zero.
int64_t PruneBothWays(const SparseLayout& layout, std::byte* dense);

// Pruning by a mask instead of by magnitude: training may have determined which elements to keep.

// A group in which a mask marks more units than may be kept. A unit of two elements is marked if
// either element is.
struct OverfullGroup {
  int64_t row = 0;
  int64_t group = 0;
  int units = 0;  // Number of marked units.
};

// Sets all elements that the mask does not mark to +0; the others keep their bits. `mask` is a b1
// matrix of the same rows and columns, row major without gaps, with a 1 for each element to be
// kept.
//
// Returns the first group with too many marked units; the groups after it are unchanged.
std::optional<OverfullGroup> KeepMarked(const SparseLayout& layout, const std::byte* mask,
                                        std::byte* dense);

}  // namespace gemmd
