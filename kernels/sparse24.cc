// SPDX-License-Identifier: Apache-2.0
#include "kernels/sparse24.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "kernels/abortable_loop.h"
#include "kernels/checked.h"
#include "kernels/sparse_refusal.h"
#include "kernels/sparse_unit.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

constexpr int64_t kWordBits = 64;
// With fewer bytes, starting threads costs more than it saves.
constexpr int64_t kParallelBytes = 256 * 1024;

std::string GroupName(std::string_view field, int64_t row, int64_t group) {
  return Concat(field, ": row ", row, ", group ", group);
}

// A bit in each bad group of a word of indices.
//
// 2:4 and 4:8: four bits hold two indices; a group is bad unless the second (high) is more than the
// first (low). 1:2: two bits hold one index, whose upper bit must be 0.
uint64_t BadGroups(const SparseForm& form, uint64_t indices) {
  constexpr uint64_t kLowBits = 0x1111'1111'1111'1111;
  if (form.kept_units() == 1) return indices & 0xaaaa'aaaa'aaaa'aaaa;
  const uint64_t low0 = indices;
  const uint64_t low1 = indices >> 1;
  const uint64_t high0 = indices >> 2;
  const uint64_t high1 = indices >> 3;
  const uint64_t increases = (high1 & ~low1) | (~(high1 ^ low1) & high0 & ~low0);
  return ~increases & kLowBits;
}

// The first bad group of a line of indices; absent if all are good, or those before the flag was
// set.
std::optional<int64_t> FirstBadGroup(const SparseLayout& layout, const std::byte* line,
                                     AbortFlag abort) {
  const int64_t bits = layout.groups * layout.form.index_bits();
  for (int64_t first = 0; first < bits && !IsSet(abort); first += kWordBits) {
    const int64_t count = std::min(kWordBits, bits - first);
    uint64_t word = 0;
    std::memcpy(&word, line + first / 8, static_cast<size_t>((count + 7) / 8));
    const uint64_t bad = BadGroups(layout.form, word) & ~uint64_t{0} >> (kWordBits - count);
    if (bad != 0) return (first + std::countr_zero(bad)) / layout.form.index_bits();
  }
  return std::nullopt;
}

// Checks the elements that the last group of a row places beyond the matrix.
absl::Status CheckBeyond(std::string_view field, const SparseLayout& layout,
                         const std::byte* compressed, int64_t row) {
  const SparseForm& form = layout.form;
  if (layout.columns % form.group() == 0) return absl::OkStatus();
  const std::byte* values = compressed + layout.values_offset(row);
  const std::byte* indices = compressed + layout.indices_offset(row);
  const int64_t group = layout.groups - 1;
  const int64_t first = group * form.kept_units();
  for (int64_t unit = first; unit < first + form.kept_units(); ++unit) {
    const auto index = static_cast<int64_t>(LoadIndex(indices, unit));
    for (int64_t i = 0; i < form.unit; ++i) {
      const int64_t column = (group * form.group_units + index) * form.unit + i;
      const uint64_t bits = LoadBits(layout.type, values, unit * form.unit + i);
      if (column < layout.columns || IsZero(layout.type, bits)) continue;
      return RefuseBeyond(field, layout, row, column);
    }
  }
  return absl::OkStatus();
}

// Expands groups from `first` to `end` of a row; both are multiples of 8 or the row's end, so that
// groups start on bytes.
template <typename Units>
void ExpandGroups(const SparseLayout& layout, const std::byte* values, const std::byte* indices,
                  int64_t first, int64_t end, std::byte* dense) {
  const SparseForm& form = layout.form;
  const int64_t units = UnitsOfLine(layout);
  const int64_t group_bits = form.group() * BitsOf(layout.type);
  const int64_t first_byte = first * group_bits / 8;
  const int64_t end_byte = std::min(end * group_bits / 8, layout.dense_line_bytes);
  std::memset(dense + first_byte, 0, static_cast<size_t>(end_byte - first_byte));
  for (int64_t group = first; group < end; ++group) {
    for (int64_t i = 0; i < form.kept_units(); ++i) {
      const int64_t kept = group * form.kept_units() + i;
      const auto index = static_cast<int64_t>(LoadIndex(indices, kept));
      const int64_t unit = group * form.group_units + index;
      if (unit >= units) continue;
      const uint32_t mask = unit == units - 1 ? LastUnitMask(layout) : ~uint32_t{0};
      Units::Store(dense, unit, Units::Load(values, kept) & mask);
    }
  }
}

template <typename Units>
void ExpandRow(const SparseLayout& layout, const std::byte* values, const std::byte* indices,
               std::byte* dense, AbortFlag abort) {
  constexpr int64_t kStep = 1024;
  for (int64_t first = 0; first < layout.groups && !IsSet(abort); first += kStep) {
    ExpandGroups<Units>(layout, values, indices, first, std::min(first + kStep, layout.groups),
                        dense);
  }
}

// A bit for each nonzero unit of a group of a dense line.
template <typename Units>
uint32_t NonzeroUnits(const SparseLayout& layout, const std::byte* line, int64_t group) {
  const int64_t units = UnitsOfLine(layout);
  const int64_t first = group * layout.form.group_units;
  const int64_t count = std::min(layout.form.group_units, units - first);
  const uint32_t magnitude = UnitMagnitudeMask(layout.type);
  uint32_t nonzero = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = Units::Load(line, first + i) & magnitude;
    if (first + i == units - 1) bits &= LastUnitMask(layout);
    nonzero |= static_cast<uint32_t>(bits != 0) << i;
  }
  return nonzero;
}

template <typename Units>
void CompressGroup(const SparseLayout& layout, const std::byte* dense, int64_t group,
                   uint32_t nonzero, std::byte* values, std::byte* indices) {
  const SparseForm& form = layout.form;
  uint32_t kept = nonzero;
  while (std::popcount(kept) < form.kept_units()) kept |= kept + 1;  // Sets the lowest 0 bit.
  int64_t target = group * form.kept_units();
  for (; kept != 0; kept &= kept - 1, ++target) {
    const int index = std::countr_zero(kept);
    const int64_t unit = group * form.group_units + index;
    uint32_t bits = (nonzero >> index & 1) != 0 ? Units::Load(dense, unit) : 0;
    if (unit == UnitsOfLine(layout) - 1) bits &= LastUnitMask(layout);
    Units::Store(values, target, bits);
    StoreIndex(indices, target, static_cast<uint32_t>(index));
  }
}

template <typename Units>
absl::Status CompressRow(std::string_view field, const SparseLayout& layout, int64_t row,
                         const std::byte* dense, std::byte* values, std::byte* indices) {
  std::memset(values, 0, static_cast<size_t>(layout.value_line_bytes));
  std::memset(indices, 0, static_cast<size_t>(layout.index_line_bytes));
  for (int64_t group = 0; group < layout.groups; ++group) {
    const uint32_t nonzero = NonzeroUnits<Units>(layout, dense, group);
    const int count = std::popcount(nonzero);
    if (count > layout.form.kept_units()) {
      return RefuseNonzeros(field, layout, row, group, count);
    }
    CompressGroup<Units>(layout, dense, group, nonzero, values, indices);
  }
  return absl::OkStatus();
}

template <typename Units>
absl::Status CheckPrunedRow(std::string_view field, const SparseLayout& layout, int64_t row,
                            const std::byte* dense) {
  for (int64_t group = 0; group < layout.groups; ++group) {
    const int count = std::popcount(NonzeroUnits<Units>(layout, dense, group));
    if (count > layout.form.kept_units()) return RefuseNonzeros(field, layout, row, group, count);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefuseIndices(std::string_view field, const SparseLayout& layout, int64_t row,
                           int64_t group, KeptIndices indices) {
  const std::string place = GroupName(field, row, group);
  if (layout.form.kept_units() == 1) {
    return absl::InvalidArgumentError(GotWant(place, Concat("index ", indices.first), "0 or 1"));
  }
  return absl::InvalidArgumentError(
      GotWant(place,
              Concat(layout.form.unit == 2 ? "pair indices " : "indices ", indices.first, ", ",
                     indices.last),
              "increasing"));
}

absl::Status RefuseBeyond(std::string_view field, const SparseLayout& layout, int64_t row,
                          int64_t column) {
  return absl::InvalidArgumentError(GotWant(GroupName(field, row, layout.groups - 1),
                                            Concat("a nonzero element at column ", column),
                                            Concat("0 at columns from k = ", layout.columns)));
}

absl::Status RefuseNonzeros(std::string_view field, const SparseLayout& layout, int64_t row,
                            int64_t group, int count) {
  const std::string_view what = layout.form.unit == 2 ? " nonzero pairs" : " nonzero elements";
  return absl::InvalidArgumentError(GotWant(GroupName(field, row, group), Concat(count, what),
                                            Concat("at most ", layout.form.kept_units())));
}

absl::StatusOr<SparseLayout> SparseLayoutOf(std::string_view field, ElementType type, int64_t rows,
                                            int64_t columns) {
  const std::optional<SparseForm> form = SparseFormOf(type);
  if (!form) {
    return absl::InvalidArgumentError(GotWant(Concat(field, ".sparsity"),
                                              Concat("2:4 of type ", NameOf(type)),
                                              "none (b1, s32 and f64 have no sparse form)"));
  }
  SparseLayout layout = {.type = type, .rows = rows, .columns = columns, .form = *form};
  layout.groups = columns / form->group() + (columns % form->group() != 0 ? 1 : 0);
  const Checked value_line = PackedBytes(type, layout.kept());
  // Four indices fill a byte; groups have one or two.
  const int64_t groups_of_a_byte = 8 / form->index_bits();
  const Checked index_line =
      layout.groups / groups_of_a_byte + (layout.groups % groups_of_a_byte != 0 ? 1 : 0);
  const Checked dense_line = PackedBytes(type, columns);
  const Checked bytes = Checked(rows) * (value_line + index_line);
  const Checked dense_bytes = Checked(rows) * dense_line;
  if (!bytes.value() || !dense_bytes.value()) {
    return absl::InvalidArgumentError(
        GotWant(field, Concat(rows, "x", columns, " elements of type ", NameOf(type)),
                "sizes in bytes below 2^63"));
  }
  layout.value_line_bytes = *value_line.value();
  layout.index_line_bytes = *index_line.value();
  layout.dense_line_bytes = *dense_line.value();
  layout.bytes = *bytes.value();
  layout.dense_bytes = *dense_bytes.value();
  return layout;
}

absl::Status CheckCompressed(std::string_view field, const SparseLayout& layout,
                             const std::byte* compressed, AbortFlag abort) {
  return CheckCompressedRows(field, layout, compressed, 0, layout.rows, abort);
}

absl::Status CheckCompressedRows(std::string_view field, const SparseLayout& layout,
                                 const std::byte* compressed, int64_t first_row, int64_t end_row,
                                 AbortFlag abort) {
  if (layout.columns == 0) return absl::OkStatus();
  for (int64_t row = first_row; row < end_row && !IsSet(abort); ++row) {
    const std::byte* indices = compressed + layout.indices_offset(row);
    const std::optional<int64_t> group = FirstBadGroup(layout, indices, abort);
    if (group) {
      const int64_t first = *group * layout.form.kept_units();
      return RefuseIndices(
          field, layout, row, *group,
          {LoadIndex(indices, first), LoadIndex(indices, first + layout.form.kept_units() - 1)});
    }
    RETURN_IF_ERROR(CheckBeyond(field, layout, compressed, row));
  }
  return absl::OkStatus();
}

void Expand(const SparseLayout& layout, const std::byte* compressed, std::byte* dense,
            AbortFlag abort) {
  if (layout.columns == 0) return;
  const bool is_shared = layout.dense_bytes >= kParallelBytes;
  WithUnits(layout, [&]<typename Units>(Units) {
    ForEachUnlessAborted(abort, is_shared, layout.rows, [&](int64_t row) {
      ExpandRow<Units>(layout, compressed + layout.values_offset(row),
                       compressed + layout.indices_offset(row),
                       dense + row * layout.dense_line_bytes, abort);
    });
  });
}

void KeptColumns(const SparseLayout& layout, const std::byte* compressed, int64_t row,
                 int64_t* columns) {
  const SparseForm& form = layout.form;
  const std::byte* indices = compressed + layout.indices_offset(row);
  for (int64_t kept = 0; kept < layout.groups * form.kept_units(); ++kept) {
    const int64_t group = kept / form.kept_units();
    const int64_t unit = group * form.group_units + static_cast<int64_t>(LoadIndex(indices, kept));
    for (int64_t i = 0; i < form.unit; ++i) *columns++ = unit * form.unit + i;
  }
}

absl::Status CheckPruned(std::string_view field, const SparseLayout& layout,
                         const std::byte* dense) {
  return WithUnits(layout, [&]<typename Units>(Units) {
    for (int64_t row = 0; row < layout.rows; ++row) {
      RETURN_IF_ERROR(
          CheckPrunedRow<Units>(field, layout, row, dense + row * layout.dense_line_bytes));
    }
    return absl::OkStatus();
  });
}

absl::Status Compress(std::string_view field, const SparseLayout& layout, const std::byte* dense,
                      std::byte* compressed) {
  if (layout.columns == 0) return absl::OkStatus();
  return WithUnits(layout, [&]<typename Units>(Units) {
    for (int64_t row = 0; row < layout.rows; ++row) {
      RETURN_IF_ERROR(CompressRow<Units>(field, layout, row, dense + row * layout.dense_line_bytes,
                                         compressed + layout.values_offset(row),
                                         compressed + layout.indices_offset(row)));
    }
    return absl::OkStatus();
  });
}

}  // namespace gemmd
