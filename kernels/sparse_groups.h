// SPDX-License-Identifier: Apache-2.0
//
// The portable sparse format (sparse24.h), one group at a time, for pruning on the host and for the
// threads of cuda/device/operands/sparse24.cu. A group of a dense line has at most 64 bits, its
// kept units at most 32. Functions are constexpr for nvcc; see packed_line.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/bad_group.h"
#include "kernels/packed_line.h"
#include "kernels/sparse24.h"
#include "kernels/sparse_unit.h"

namespace gemmd {

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

// The detail (bad_group.h) of a dense group: its nonzero units if it may not keep them all,
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

// The same of a dense matrix. Returns the first bad group.
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

// The detail (bad_group.h) of a compressed group: kIsIndices and the indices if they do not
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

}  // namespace gemmd
