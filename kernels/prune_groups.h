// SPDX-License-Identifier: Apache-2.0
//
// Pruning (prune24.h), one group or one tile at a time: one implementation for the host
// (prune24.cc) and for the threads of cuda/device/operands/sparse24.cu. Functions are constexpr for
// nvcc; see packed_line.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/sparse_groups.h"

namespace gemmd {

// A sum of magnitudes in which an infinity hides nothing finite, and a NaN hides no infinity.
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

// The magnitude of what a choice keeps; `squares` has those of the tile's units, row by row.
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

}  // namespace gemmd
