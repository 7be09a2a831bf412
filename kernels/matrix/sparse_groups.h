// SPDX-License-Identifier: Apache-2.0
//
// The portable sparse form (sparse24.h), one group at a time; shared by the host and
// cuda/device/operands/sparse24.cu. (The host has separate code for expansion.) A group of a dense
// line has at most 64 bits, its kept units at most 32. Functions are constexpr for nvcc; see
// element_codes.h.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "kernels/matrix/element_codes.h"
#include "kernels/matrix/sparse24.h"

namespace gemmd {

// Units of a dense line; the last may lie half beyond the matrix.
constexpr int64_t UnitsOfLine(const SparseLayout& layout) {
  return layout.columns / layout.form.unit + layout.columns % layout.form.unit;
}

// The bits of the last unit of a dense line that are in the matrix.
constexpr uint32_t LastUnitMask(const SparseLayout& layout) {
  return layout.columns % layout.form.unit != 0 ? 0xf : ~uint32_t{0};
}

// The bits that decide whether an element is zero.
constexpr uint64_t MagnitudeMask(ElementType type) {
  const int width = BitsOf(type);
  if (type == ElementType::kTf32) return 0x7fff'e000;
  return ~uint64_t{0} >> (64 - (IsFloat(type) ? width - 1 : width));
}

// The bits that decide whether a whole unit is zero.
constexpr uint32_t UnitMagnitudeMask(ElementType type) {
  const auto mask = static_cast<uint32_t>(MagnitudeMask(type));
  return BitsOf(type) == 4 ? mask << 4 | mask : mask;
}

// Loads index `position` of a line of indices.
constexpr uint32_t LoadIndex(const std::byte* line, int64_t position) {
  return std::to_integer<uint32_t>(line[position / 4]) >> position % 4 * 2 & 3;
}

// A matrix, dense and compressed; each function uses the part that it needs.
struct SparseJob {
  SparseLayout layout;
  std::byte* dense = nullptr;
  std::byte* compressed = nullptr;
  int64_t units = 0;            // In a dense line; the last may lie half beyond the matrix.
  uint32_t last_unit_mask = 0;  // The bits of the last unit that are in the matrix.
  uint32_t unit_magnitude = 0;  // The bits that decide whether a unit is zero.
  uint32_t magnitude = 0;       // The bits that decide whether an element is zero.
};

constexpr SparseJob SparseJobOf(const SparseLayout& layout, std::byte* dense,
                                std::byte* compressed) {
  return {.layout = layout,
          .dense = dense,
          .compressed = compressed,
          .units = UnitsOfLine(layout),
          .last_unit_mask = LastUnitMask(layout),
          .unit_magnitude = UnitMagnitudeMask(layout.type),
          .magnitude = static_cast<uint32_t>(MagnitudeMask(layout.type))};
}

// The units and groups that exist. kGroups groups together fill whole bytes of values and of
// indices.
template <int kBits, int kUnits>
struct GroupForm {
  static constexpr int kUnitBits = kBits;
  static constexpr int kGroupUnits = kUnits;
  static constexpr int kKeptUnits = kUnits / 2;
  static constexpr int kGroupBits = kUnitBits * kGroupUnits;
  static constexpr int kKeptBits = kUnitBits * kKeptUnits;
  static constexpr int kIndexBits = 2 * kKeptUnits;
  static constexpr int kGroups = 8 / kIndexBits;
  static constexpr uint32_t kUnitMask = ~uint32_t{0} >> (32 - kUnitBits);
};

// Calls visit with the form of the layout.
template <typename Visit>
constexpr auto WithGroupForm(const SparseLayout& layout, const Visit& visit) {
  switch (BitsOf(layout.type) * static_cast<int>(layout.form.unit)) {
    case 6: return visit(GroupForm<6, 4>());
    case 8: return visit(GroupForm<8, 4>());
    case 16: return visit(GroupForm<16, 4>());
    default: return visit(GroupForm<32, 2>());
  }
}

template <int kBytes>
constexpr uint64_t LoadWords(const std::byte* place, int bytes) {
  uint64_t word = 0;
  for (int i = 0; i < bytes; i += kBytes) {
    word |= uint64_t{*reinterpret_cast<const WordOfBytes<kBytes>*>(place + i)} << 8 * i;
  }
  return word;
}

// The bytes (0 to 8) from `place`, low ones first, in words as wide as the address and the count
// allow.
template <typename Byte>
constexpr uint64_t LoadFew(const Byte* place, int bytes) {
  const auto alignment =
      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(place)) | static_cast<uint32_t>(bytes);
  if (alignment % 8 == 0) return LoadWords<8>(place, bytes);
  if (alignment % 4 == 0) return LoadWords<4>(place, bytes);
  if (alignment % 2 == 0) return LoadWords<2>(place, bytes);
  return LoadWords<1>(place, bytes);
}

// A mask of the low `bits` (0 to 64) bits.
constexpr uint64_t LowMask(int bits) { return bits == 0 ? 0 : ~uint64_t{0} >> (64 - bits); }

// Where a group of a dense line lies.
struct GroupPlace {
  std::byte* place = nullptr;
  int bytes = 0;        // In memory, fewer at the end of a line.
  uint64_t inside = 0;  // The bits that are in the matrix.
};

template <typename Form>
constexpr GroupPlace PlaceOf(const SparseJob& job, int64_t row, int64_t group) {
  constexpr int kBytes = Form::kGroupBits / 8;
  const int64_t line_bytes = job.layout.dense_line_bytes;
  const int64_t left = line_bytes - group * kBytes;
  const int64_t units = job.units - group * Form::kGroupUnits;
  GroupPlace result;
  result.place = job.dense + row * line_bytes + group * kBytes;
  result.bytes = left < kBytes ? static_cast<int>(left) : kBytes;
  const int count = units < Form::kGroupUnits ? static_cast<int>(units) : Form::kGroupUnits;
  result.inside = LowMask(count * Form::kUnitBits);
  if (units <= Form::kGroupUnits) {
    const int last = (count - 1) * Form::kUnitBits;
    result.inside &= LowMask(last) | uint64_t{job.last_unit_mask} << last;
  }
  return result;
}

// The elements of a group; zeros beyond the matrix.
constexpr uint64_t LoadElements(const GroupPlace& place) {
  return LoadFew(place.place, place.bytes) & place.inside;
}

// A bit for each nonzero unit.
template <typename Form>
constexpr uint32_t NonzeroUnits(const SparseJob& job, uint64_t elements) {
  uint32_t nonzero = 0;
  for (int i = 0; i < Form::kGroupUnits; ++i) {
    const auto unit = static_cast<uint32_t>(elements >> i * Form::kUnitBits) & Form::kUnitMask;
    nonzero |= static_cast<uint32_t>((unit & job.unit_magnitude) != 0) << i;
  }
  return nonzero;
}

constexpr int CountOf(uint32_t units) {
  int count = 0;
  for (; units != 0; units &= units - 1) ++count;
  return count;
}

// The detail (MakeBadGroup) of a dense group: its nonzero units if it may not keep them all,
// otherwise 0.
template <typename Form>
constexpr uint32_t PrunedFault(const SparseJob& job, int64_t row, int64_t group) {
  const int count = CountOf(NonzeroUnits<Form>(job, LoadElements(PlaceOf<Form>(job, row, group))));
  return count > Form::kKeptUnits ? static_cast<uint32_t>(count) : 0;
}

// The kept units and the indices of a group.
struct KeptGroup {
  uint32_t values = 0;
  uint32_t indices = 0;
};

// Compresses a group. If it has more nonzero units than it may keep, it keeps the first of them.
template <typename Form>
constexpr KeptGroup CompressGroup(const SparseJob& job, uint64_t elements) {
  const uint32_t nonzero = NonzeroUnits<Form>(job, elements);
  uint32_t kept = nonzero;
  while (CountOf(kept) < Form::kKeptUnits) kept |= kept + 1;  // Sets the lowest 0 bit.
  KeptGroup result;
  int place = 0;
  for (int i = 0; i < Form::kGroupUnits; ++i) {
    if ((kept >> i & 1) == 0 || place == Form::kKeptUnits) continue;
    const auto unit = static_cast<uint32_t>(elements >> i * Form::kUnitBits) & Form::kUnitMask;
    if ((nonzero >> i & 1) != 0) result.values |= unit << place * (Form::kUnitBits % 32);
    result.indices |= static_cast<uint32_t>(i) << 2 * place;
    ++place;
  }
  return result;
}

// Compresses up to kGroups groups of a row, starting with group `span` * kGroups, from what
// `elements` gives for each of them in turn.
template <typename Form, typename Elements>
constexpr void CompressGroups(const SparseJob& job, int64_t row, int64_t span,
                              const Elements& elements) {
  const SparseLayout& layout = job.layout;
  std::byte* values = job.compressed + layout.values_offset(row);
  uint32_t indices = 0;
  uint64_t bits = 0;
  int count = 0;                         // Bits not yet stored.
  int64_t first = span * Form::kGroups;  // The first group in `bits`.
  for (int i = 0; i < Form::kGroups; ++i) {
    const int64_t group = span * Form::kGroups + i;
    if (group >= layout.groups) break;
    const KeptGroup kept = CompressGroup<Form>(job, elements(group));
    indices |= kept.indices << i * Form::kIndexBits;
    bits |= uint64_t{kept.values} << count;
    count += Form::kKeptBits;
    const bool is_last = i + 1 == Form::kGroups || group + 1 == layout.groups;
    if (count % 8 != 0 && !is_last) continue;
    StoreBytes(values + first * Form::kKeptBits / 8, bits, (count + 7) / 8);
    first = group + 1;
    bits = 0;
    count = 0;
  }
  job.compressed[layout.indices_offset(row) + span] = static_cast<std::byte>(indices);
}

// The same for a dense matrix. Returns the first bad group.
template <typename Form>
constexpr BadGroup CompressSpan(const SparseJob& job, int64_t row, int64_t span) {
  BadGroup bad = kNoBadGroup;
  CompressGroups<Form>(job, row, span, [&](int64_t group) {
    const uint64_t elements = LoadElements(PlaceOf<Form>(job, row, group));
    const int nonzero = CountOf(NonzeroUnits<Form>(job, elements));
    if (nonzero > Form::kKeptUnits && bad == kNoBadGroup) {
      bad = MakeBadGroup(row * job.layout.groups + group, static_cast<uint32_t>(nonzero));
    }
    return elements;
  });
  return bad;
}

// The indices and the values of a group; its last values may be of elements beyond the matrix.
template <typename Form>
constexpr KeptGroup LoadKept(const SparseJob& job, int64_t row, int64_t group) {
  const SparseLayout& layout = job.layout;
  const std::byte* indices = job.compressed + layout.indices_offset(row);
  const int64_t bit = group * Form::kIndexBits;
  KeptGroup kept;
  kept.indices = std::to_integer<uint32_t>(indices[bit / 8]) >> bit % 8 &
                 static_cast<uint32_t>(LowMask(Form::kIndexBits));
  const int64_t first = group * Form::kKeptBits;
  const int shift = static_cast<int>(first % 8);
  const uint64_t word = LoadFew(job.compressed + layout.values_offset(row) + first / 8,
                                (shift + Form::kKeptBits + 7) / 8);
  kept.values = static_cast<uint32_t>(word >> shift & LowMask(Form::kKeptBits));
  return kept;
}

constexpr uint32_t IndexOf(const KeptGroup& kept, int place) {
  return kept.indices >> 2 * place & 3;
}

// The dense elements of a group; any indices are allowed.
template <typename Form>
constexpr uint64_t ExpandedGroup(const KeptGroup& kept) {
  uint64_t elements = 0;
  for (int place = 0; place < Form::kKeptUnits; ++place) {
    const uint32_t index = IndexOf(kept, place);
    if (index >= Form::kGroupUnits) continue;
    const int shift = static_cast<int>(index) * Form::kUnitBits;
    const uint64_t unit = kept.values >> place * (Form::kUnitBits % 32) & Form::kUnitMask;
    elements = (elements & ~(uint64_t{Form::kUnitMask} << shift)) | unit << shift;
  }
  return elements;
}

template <typename Form>
constexpr void ExpandGroup(const SparseJob& job, int64_t row, int64_t group) {
  const GroupPlace target = PlaceOf<Form>(job, row, group);
  StoreBytes(target.place, ExpandedGroup<Form>(LoadKept<Form>(job, row, group)) & target.inside,
             target.bytes);
}

// The detail (MakeBadGroup) of a compressed group: kIsIndices and the indices if they do not
// increase, kIsBeyond and the element's place in the group if a nonzero element lies beyond the
// matrix, otherwise 0.
template <typename Form>
constexpr uint32_t CompressedFault(const SparseJob& job, int64_t row, int64_t group) {
  const KeptGroup kept = LoadKept<Form>(job, row, group);
  const uint32_t last = IndexOf(kept, Form::kKeptUnits - 1);
  const bool is_good = Form::kKeptUnits == 1 ? last < Form::kGroupUnits : IndexOf(kept, 0) < last;
  if (!is_good) return kIsIndices | kept.indices;
  const auto unit = static_cast<int>(job.layout.form.unit);
  const int bits = Form::kUnitBits / unit;
  for (int place = 0; place < Form::kKeptUnits * unit; ++place) {
    const auto in_group = static_cast<int>(IndexOf(kept, place / unit)) * unit + place % unit;
    const int64_t column = group * Form::kGroupUnits * unit + in_group;
    const uint32_t code = kept.values >> place * (bits % 32) & job.magnitude;
    if (column >= job.layout.columns && code != 0) {
      return kIsBeyond | static_cast<uint32_t>(in_group);
    }
  }
  return 0;
}

// The marks of one group.
struct MarkedGroup {
  uint64_t elements = 0;  // All bits of each marked element of the group.
  int units = 0;          // Units with a marked element.
};

// A group has 2, 4 or 8 elements, so its marks lie in one byte of the mask's line.
template <typename Form>
constexpr MarkedGroup MarkedGroupOf(const SparseLayout& layout, const std::byte* mask_line,
                                    int64_t group) {
  const int unit = static_cast<int>(layout.form.unit);
  const int bits = Form::kUnitBits / unit;
  const int64_t first = group * layout.form.group();
  const int64_t left = layout.columns - first;
  const int count = static_cast<int>(left < layout.form.group() ? left : layout.form.group());
  const uint32_t marks = std::to_integer<uint32_t>(mask_line[first / 8]) >> first % 8;
  MarkedGroup marked;
  uint32_t units = 0;
  for (int i = 0; i < count; ++i) {
    if ((marks >> i & 1) == 0) continue;
    marked.elements |= LowMask(bits) << i * bits;
    units |= uint32_t{1} << i / unit;
  }
  marked.units = CountOf(units);
  return marked;
}

// A sum of magnitudes that counts infinities and NaNs separately from the finite sum.
struct Magnitude {
  int specials = 0;  // Infinities, plus 64 for each NaN: there are at most 16 terms.
  double finite = 0;

  constexpr Magnitude& operator+=(const Magnitude& other) {
    specials += other.specials;
    finite = finite + other.finite;
    return *this;
  }
  constexpr bool operator>(const Magnitude& other) const {
    return specials > other.specials || (specials == other.specials && finite > other.finite);
  }
  constexpr bool operator==(const Magnitude&) const = default;
};

constexpr Magnitude MagnitudeOf(ElementType type, uint64_t code) {
  const double value = WithElementType(
      type, [code]<ElementType kType>() { return static_cast<double>(DecodeCode<kType>(code)); });
  if (value != value) return {.specials = 64};
  const double magnitude = value < 0 ? -value : value;
  if (magnitude > std::numeric_limits<double>::max()) return {.specials = 1};
  return {.finite = magnitude};
}

// The magnitude of unit `index` of a group.
template <typename Form>
constexpr Magnitude MagnitudeOfUnit(const SparseJob& job, uint64_t elements, int index) {
  const uint64_t unit = elements >> index * Form::kUnitBits & Form::kUnitMask;
  Magnitude sum = MagnitudeOf(job.layout.type, unit);
  if (job.layout.form.unit == 2) sum += MagnitudeOf(job.layout.type, unit >> 4);
  return sum;
}

// The kept units of a group of one line, as bits: the largest units, and among equals the first.
template <typename Form>
constexpr uint32_t LargestUnits(const SparseJob& job, uint64_t elements) {
  Magnitude magnitudes[Form::kGroupUnits];
  for (int i = 0; i < Form::kGroupUnits; ++i) {
    magnitudes[i] = MagnitudeOfUnit<Form>(job, elements, i);
  }
  uint32_t kept = 0;
  for (int turn = 0; turn < Form::kKeptUnits; ++turn) {
    uint32_t largest = 0;  // The bit of the largest unit.
    Magnitude most;
    for (int i = 0; i < Form::kGroupUnits; ++i) {
      const uint32_t bit = uint32_t{1} << i;
      if ((kept & bit) != 0) continue;
      if (largest != 0 && !(magnitudes[i] > most)) continue;
      largest = bit;
      most = magnitudes[i];
    }
    kept |= largest;
  }
  return kept;
}

// Sets all units that are not kept to +0. Returns how many of their elements were not zero.
template <typename Form>
constexpr int KeepUnits(const SparseJob& job, const GroupPlace& place, uint32_t kept) {
  const uint64_t word = LoadFew(place.place, place.bytes);
  uint64_t cleared = 0;
  for (int i = 0; i < Form::kGroupUnits; ++i) {
    if ((kept >> i & 1) == 0) cleared |= uint64_t{Form::kUnitMask} << i * Form::kUnitBits;
  }
  cleared &= place.inside;
  if ((word & cleared) == 0) return 0;
  StoreBytes(place.place, word & ~cleared, place.bytes);
  const auto unit = static_cast<int>(job.layout.form.unit);
  int count = 0;
  for (int e = 0; e < Form::kGroupUnits * unit; ++e) {
    const uint64_t code = (word & cleared) >> e * (Form::kUnitBits / unit);
    count += (code & job.magnitude) != 0 ? 1 : 0;
  }
  return count;
}

template <typename Form>
constexpr int PruneGroup(const SparseJob& job, int64_t row, int64_t group) {
  const GroupPlace place = PlaceOf<Form>(job, row, group);
  return KeepUnits<Form>(job, place, LargestUnits<Form>(job, LoadElements(place)));
}

// A choice of units of a square tile: kGroupUnits bits for each row of units, first row lowest.
using TilePattern = uint16_t;

template <int kGroupUnits>
inline constexpr int kTilePatterns = kGroupUnits == 4 ? 90 : 2;

// All choices of half of each row and each column, in the order of preference among equals.
template <int kGroupUnits>
constexpr std::array<TilePattern, kTilePatterns<kGroupUnits>> MakeTilePatterns() {
  if constexpr (kGroupUnits == 2) {
    return {0b10'01, 0b01'10};
  } else {
    constexpr unsigned kHalves[] = {0b0011, 0b0101, 0b1001, 0b0110, 0b1010, 0b1100};
    std::array<TilePattern, kTilePatterns<kGroupUnits>> patterns = {};
    size_t size = 0;
    for (unsigned first : kHalves) {
      for (unsigned second : kHalves) {
        for (unsigned third : kHalves) {
          // The last row brings every column to two, so each column must have one or two by now.
          if ((first & second & third) != 0 || (first | second | third) != 0b1111) continue;
          const unsigned last = first ^ second ^ third;
          patterns[size++] =
              static_cast<TilePattern>(first | second << 4 | third << 8 | last << 12);
        }
      }
    }
    return patterns;
  }
}

constexpr uint32_t RowOfPattern(TilePattern pattern, int row, int group_units) {
  return pattern >> row * group_units & ((uint32_t{1} << group_units) - 1);
}

// The magnitude of the square of elements that is unit (row, unit) of the tile at row tile `tile`;
// elements beyond the matrix count as zero.
template <typename Form>
constexpr Magnitude MagnitudeOfSquare(const SparseJob& job, int64_t tile, int64_t group, int row,
                                      int unit) {
  const int64_t size = job.layout.form.unit;
  const int64_t first = (tile * Form::kGroupUnits + row) * size;
  Magnitude sum;
  for (int64_t i = first; i < first + size && i < job.layout.rows; ++i) {
    sum += MagnitudeOfUnit<Form>(job, LoadElements(PlaceOf<Form>(job, i, group)), unit);
  }
  return sum;
}

// The magnitude of the units that a choice keeps; `squares` has those of the tile's units, row by
// row.
template <typename Form>
constexpr Magnitude MagnitudeOfPattern(const Magnitude* squares, TilePattern pattern) {
  Magnitude sum;
  for (int row = 0; row < Form::kGroupUnits; ++row) {
    Magnitude of_row;
    for (int i = 0; i < Form::kGroupUnits; ++i) {
      const int place = row * Form::kGroupUnits + i;
      if ((pattern >> place & 1) != 0) of_row += squares[place];
    }
    sum += of_row;
  }
  return sum;
}

// The largest choice so far; there is one from the start.
struct Choice {
  Magnitude magnitude;
  int pattern = 0;

  // Whether this choice is preferred to the other.
  constexpr bool IsBetterThan(const Choice& other) const {
    if (magnitude == other.magnitude) return pattern < other.pattern;
    return magnitude > other.magnitude;
  }
};

// Prunes one of a tile's kGroupUnits * unit lines. Returns how many nonzero elements became zero.
template <typename Form>
constexpr int KeepLineOfTile(const SparseJob& job, int64_t tile, int64_t group, int line,
                             TilePattern pattern) {
  const auto unit = static_cast<int>(job.layout.form.unit);
  const int64_t row = tile * Form::kGroupUnits * unit + line;
  if (row >= job.layout.rows) return 0;
  return KeepUnits<Form>(job, PlaceOf<Form>(job, row, group),
                         RowOfPattern(pattern, line / unit, Form::kGroupUnits));
}

// Pruning and compression in one pass: makes the sparse form of dense matrices, which are not
// changed. The bytes equal those of Prune or KeepMarked followed by Compress.
//
// Row-major matrices, one after the other. Lines are numbered over all matrices: those of the
// second matrix follow those of the first.
struct CompressView {
  SparseLayout layout;  // Describes one matrix.
  const std::byte* dense = nullptr;
  int64_t dense_line_stride_bytes = 0;
  int64_t dense_matrix_stride_bytes = 0;
  // A bit for each element to keep; null: keep the units of the largest magnitude.
  const std::byte* mask = nullptr;
  int64_t mask_line_stride_bytes = 0;
  int64_t mask_matrix_stride_bytes = 0;
  std::byte* compressed = nullptr;  // Without gaps.
  int64_t first_line = 0;           // First line to compress.
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

// Prunes and compresses the groups of one byte of indices of a line. Returns the first group in
// which the mask marks too many units: its number over all lines, and the number of marked units.
// The output for such a group is meaningless.
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
  // The job covers only this line, which is read but not written.
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

// Compresses the lines of the view, on the calling thread. Returns the first bad group.
BadGroup CompressLines(const CompressView& view);

// The error for a mask that marks too many units, at this group of several matrices.
absl::Status RefuseMask(const SparseLayout& layout, int64_t matrices, BadGroup bad);

}  // namespace gemmd
