// SPDX-License-Identifier: Apache-2.0
#include "kernels/matrix/sparse24.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "kernels/matrix/abortable_loop.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/sparse_groups.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

constexpr int64_t kWordBits = 64;
// With fewer bytes, starting threads costs more than it saves.
constexpr int64_t kParallelBytes = 256 * 1024;

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

// Units of whole bytes. A unit is one element, or two four-bit elements, which share a byte because
// every line starts on one.
template <typename Word>
struct WholeUnits {
  static uint32_t Load(const std::byte* line, int64_t index) {
    Word word;
    std::memcpy(&word, line + index * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    return word;
  }
  static void Store(std::byte* line, int64_t index, uint32_t bits) {
    const Word word = static_cast<Word>(bits);
    std::memcpy(line + index * static_cast<int64_t>(sizeof(Word)), &word, sizeof(Word));
  }
};

// Units of one six-bit element; the two six-bit types are packed alike.
struct SixBitUnits {
  static uint32_t Load(const std::byte* line, int64_t index) {
    return static_cast<uint32_t>(LoadBits(ElementType::kE3m2, line, index));
  }
  static void Store(std::byte* line, int64_t index, uint32_t bits) {
    StoreBits(ElementType::kE3m2, line, index, bits);
  }
};

// Calls visit with an object of the type that loads and stores the units of the layout.
template <typename Visit>
auto WithUnits(const SparseLayout& layout, const Visit& visit) {
  switch (BitsOf(layout.type) * static_cast<int>(layout.form.unit)) {
    case 6: return visit(SixBitUnits());
    case 8: return visit(WholeUnits<uint8_t>());
    case 16: return visit(WholeUnits<uint16_t>());
    default: return visit(WholeUnits<uint32_t>());
  }
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

// Prunes one square tile both ways. Returns how many nonzero elements became zero.
template <typename Form>
int64_t PruneTile(const SparseJob& job, int64_t tile, int64_t group) {
  constexpr int kUnits = Form::kGroupUnits;
  static constexpr auto kPatterns = MakeTilePatterns<kUnits>();
  Magnitude squares[kUnits * kUnits];
  for (int i = 0; i < kUnits * kUnits; ++i) {
    squares[i] = MagnitudeOfSquare<Form>(job, tile, group, i / kUnits, i % kUnits);
  }
  // The order does not matter: IsBetterThan breaks ties.
  int i = static_cast<int>(kPatterns.size()) - 1;
  Choice choice = {MagnitudeOfPattern<Form>(squares, kPatterns.back()), i};
  while (i-- > 0) {
    const Choice other = {MagnitudeOfPattern<Form>(squares, kPatterns[static_cast<size_t>(i)]), i};
    if (other.IsBetterThan(choice)) choice = other;
  }
  int64_t cleared = 0;
  for (int line = 0; line < kUnits * job.layout.form.unit; ++line) {
    cleared += KeepLineOfTile<Form>(job, tile, group, line,
                                    kPatterns[static_cast<size_t>(choice.pattern)]);
  }
  return cleared;
}

// Clears the unmarked units of a group. Returns how many units are marked.
template <typename Form>
int KeepMarkedElements(const SparseJob& job, int64_t row, int64_t group,
                       const std::byte* mask_line) {
  const MarkedGroup marked = MarkedGroupOf<Form>(job.layout, mask_line, group);
  const GroupPlace place = PlaceOf<Form>(job, row, group);
  const uint64_t word = LoadFew(place.place, place.bytes);
  StoreBytes(place.place, word & (marked.elements | ~place.inside), place.bytes);
  return marked.units;
}

// Refuses a matrix that is not sparse, or not in the portable form, for its bad group; the same for
// host and GPU checks.
absl::Status Refuse(std::string_view field, const SparseLayout& layout, BadGroup bad,
                    const std::string& got, const std::string& want) {
  const auto position = static_cast<int64_t>(bad >> 8);
  const std::string place =
      Concat(field, ": row ", position / layout.groups, ", group ", position % layout.groups);
  return Invalid(place, got, want);
}

}  // namespace

absl::StatusOr<SparseLayout> SparseLayoutOf(std::string_view field, ElementType type, int64_t rows,
                                            int64_t columns) {
  const std::optional<SparseForm> form = SparseFormOf(type);
  if (!form) {
    return Invalid(Concat(field, ".sparsity"), Concat("2:4 of type ", NameOf(type)),
                   "none (b1, s32 and f64 have no sparse form)");
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
    return Invalid(field, Concat(rows, "x", columns, " elements of type ", NameOf(type)),
                   "sizes in bytes below 2^63");
  }
  layout.value_line_bytes = *value_line.value();
  layout.index_line_bytes = *index_line.value();
  layout.dense_line_bytes = *dense_line.value();
  layout.bytes = *bytes.value();
  layout.dense_bytes = *dense_bytes.value();
  return layout;
}

absl::Status PrunedRefusal(std::string_view field, const SparseLayout& layout, BadGroup bad) {
  if (bad == kNoBadGroup) return absl::OkStatus();
  const std::string_view what = layout.form.unit == 2 ? " nonzero pairs" : " nonzero elements";
  return Refuse(field, layout, bad, Concat(static_cast<int>(bad & 0xff), what),
                Concat("at most ", layout.form.kept_units()));
}

absl::Status CompressedRefusal(std::string_view field, const SparseLayout& layout, BadGroup bad) {
  if (bad == kNoBadGroup) return absl::OkStatus();
  const auto detail = static_cast<uint32_t>(bad & 0xff);
  if ((detail & kIsBeyond) != 0) {
    const int64_t column = (layout.groups - 1) * layout.form.group() + (detail & ~kIsBeyond);
    return Refuse(field, layout, bad, Concat("a nonzero element at column ", column),
                  Concat("0 at columns from k = ", layout.columns));
  }
  const uint64_t first = detail & 3;
  if (layout.form.kept_units() == 1) {
    return Refuse(field, layout, bad, Concat("index ", first), "0 or 1");
  }
  return Refuse(field, layout, bad,
                Concat(layout.form.unit == 2 ? "pair indices " : "indices ", first, ", ",
                       uint64_t{detail >> 2 & 3}),
                "increasing");
}

absl::Status CheckCompressed(std::string_view field, const SparseLayout& layout,
                             const std::byte* compressed, AbortFlag abort) {
  return CheckCompressedRows(field, layout, compressed, 0, layout.rows, abort);
}

absl::Status CheckCompressedRows(std::string_view field, const SparseLayout& layout,
                                 const std::byte* compressed, int64_t first_row, int64_t end_row,
                                 AbortFlag abort) {
  if (layout.columns == 0) return absl::OkStatus();
  const SparseJob job = SparseJobOf(layout, nullptr, const_cast<std::byte*>(compressed));
  const bool has_elements_beyond = layout.columns % layout.form.group() != 0;
  for (int64_t row = first_row; row < end_row && !IsSet(abort); ++row) {
    std::optional<int64_t> group =
        FirstBadGroup(layout, compressed + layout.indices_offset(row), abort);
    if (!group && has_elements_beyond) group = layout.groups - 1;
    if (!group) continue;
    const uint32_t fault = WithGroupForm(
        layout, [&]<typename Form>(Form) { return CompressedFault<Form>(job, row, *group); });
    if (fault == 0) continue;
    return CompressedRefusal(field, layout, MakeBadGroup(row * layout.groups + *group, fault));
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
  if (layout.columns == 0) return absl::OkStatus();
  const SparseJob job = SparseJobOf(layout, const_cast<std::byte*>(dense), nullptr);
  const BadGroup bad = WithGroupForm(layout, [&]<typename Form>(Form) {
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t group = 0; group < layout.groups; ++group) {
        const uint32_t fault = PrunedFault<Form>(job, row, group);
        if (fault != 0) return MakeBadGroup(row * layout.groups + group, fault);
      }
    }
    return kNoBadGroup;
  });
  return PrunedRefusal(field, layout, bad);
}

absl::Status Compress(std::string_view field, const SparseLayout& layout, const std::byte* dense,
                      std::byte* compressed) {
  if (layout.columns == 0) return absl::OkStatus();
  const SparseJob job = SparseJobOf(layout, const_cast<std::byte*>(dense), compressed);
  const BadGroup bad = WithGroupForm(layout, [&]<typename Form>(Form) {
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t span = 0; span < layout.index_line_bytes; ++span) {
        const BadGroup first = CompressSpan<Form>(job, row, span);
        if (first != kNoBadGroup) return first;
      }
    }
    return kNoBadGroup;
  });
  return PrunedRefusal(field, layout, bad);
}

int64_t PruneByMagnitude(const SparseLayout& layout, std::byte* dense) {
  const SparseJob job = SparseJobOf(layout, dense, nullptr);
  return WithGroupForm(layout, [&]<typename Form>(Form) {
    int64_t cleared = 0;
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t group = 0; group < layout.groups; ++group) {
        cleared += PruneGroup<Form>(job, row, group);
      }
    }
    return cleared;
  });
}

int64_t PruneBothWays(const SparseLayout& layout, std::byte* dense) {
  const SparseJob job = SparseJobOf(layout, dense, nullptr);
  return WithGroupForm(layout, [&]<typename Form>(Form) {
    int64_t cleared = 0;
    for (int64_t tile = 0; tile * layout.form.group() < layout.rows; ++tile) {
      for (int64_t group = 0; group < layout.groups; ++group) {
        cleared += PruneTile<Form>(job, tile, group);
      }
    }
    return cleared;
  });
}

std::optional<OverfullGroup> KeepMarked(const SparseLayout& layout, const std::byte* mask,
                                        std::byte* dense) {
  const SparseJob job = SparseJobOf(layout, dense, nullptr);
  const int64_t mask_line_bytes = layout.columns / 8 + (layout.columns % 8 != 0 ? 1 : 0);
  return WithGroupForm(layout, [&]<typename Form>(Form) -> std::optional<OverfullGroup> {
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t group = 0; group < layout.groups; ++group) {
        const int units = KeepMarkedElements<Form>(job, row, group, mask + row * mask_line_bytes);
        if (units > Form::kKeptUnits) return OverfullGroup{row, group, units};
      }
    }
    return std::nullopt;
  });
}

BadGroup CompressLines(const CompressView& view) {
  return WithGroupForm(view.layout, [&]<typename Form>(Form) {
    BadGroup bad = kNoBadGroup;
    for (int64_t line = view.first_line; line < view.end_line; ++line) {
      for (int64_t span = 0; span < view.layout.index_line_bytes; ++span) {
        bad = std::min(bad, CompressSpanOfView<Form>(view, line, span));
      }
    }
    return bad;
  });
}

absl::Status RefuseMask(const SparseLayout& layout, int64_t matrices, BadGroup bad) {
  const auto position = static_cast<int64_t>(bad >> 8);
  const int64_t line = position / layout.groups;
  const std::string matrix =
      matrices > 1 ? Concat("matrix ", line / layout.rows, ", ") : std::string();
  return Invalid(
      Concat("mask: ", matrix, "row ", line % layout.rows, ", group ", position % layout.groups),
      Concat(bad & 0xff, layout.form.unit == 2 ? " pairs" : " elements", " to be kept"),
      Concat("at most ", layout.form.kept_units()));
}

}  // namespace gemmd
