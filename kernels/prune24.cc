// SPDX-License-Identifier: Apache-2.0
#include "kernels/prune24.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <compare>
#include <vector>

#include "kernels/sparse_unit.h"

namespace gemmd {
namespace {

constexpr int kMostUnits = 4;  // Of a group.

// A sum of magnitudes in which no infinity hides what is finite, and no NaN an infinity.
struct Magnitude {
  int nans = 0;
  int infinities = 0;
  double finite = 0;

  Magnitude& operator+=(const Magnitude& other) {
    nans += other.nans;
    infinities += other.infinities;
    finite += other.finite;
    return *this;
  }
  friend auto operator<=>(const Magnitude&, const Magnitude&) = default;
};

Magnitude MagnitudeOf(double value) {
  if (std::isnan(value)) return {.nans = 1};
  if (std::isinf(value)) return {.infinities = 1};
  return {.finite = std::fabs(value)};
}

// Some lines of a dense matrix, one group high or one line, and their values.
class Strip {
 public:
  Strip(const SparseLayout& layout, int64_t most_rows)
      : layout_(layout), values_(static_cast<size_t>(most_rows * layout.columns)) {}

  void Read(std::byte* lines, int64_t rows) {
    lines_ = lines;
    rows_ = rows;
    for (int64_t i = 0; i < rows; ++i) {
      DecodeLine(layout_.type, lines + i * layout_.dense_line_bytes, layout_.columns,
                 values_.data() + i * layout_.columns);
    }
  }

  // Of the unit `unit` of each line, lines [first_row, last_row); zero beyond the matrix.
  Magnitude Sum(int64_t first_row, int64_t last_row, int64_t unit) const {
    Magnitude sum;
    ForEach(first_row, last_row, unit, [&](int64_t row, int64_t column) {
      sum += MagnitudeOf(values_[static_cast<size_t>(row * layout_.columns + column)]);
    });
    return sum;
  }

  // Sets the same elements to zero and returns how many were not.
  int64_t Clear(int64_t first_row, int64_t last_row, int64_t unit) {
    int64_t cleared = 0;
    ForEach(first_row, last_row, unit, [&](int64_t row, int64_t column) {
      std::byte* line = lines_ + row * layout_.dense_line_bytes;
      cleared += IsZero(layout_.type, LoadBits(layout_.type, line, column)) ? 0 : 1;
      StoreBits(layout_.type, line, column, 0);
    });
    return cleared;
  }

 private:
  template <typename Visit>
  void ForEach(int64_t first_row, int64_t last_row, int64_t unit, const Visit& visit) const {
    const int64_t first = unit * layout_.form.unit;
    const int64_t last = std::min(first + layout_.form.unit, layout_.columns);
    for (int64_t row = first_row; row < std::min(last_row, rows_); ++row) {
      for (int64_t column = first; column < last; ++column) visit(row, column);
    }
  }

  const SparseLayout& layout_;
  std::vector<double> values_;
  std::byte* lines_ = nullptr;
  int64_t rows_ = 0;
};

// The units of one group of a single line that are kept, as bits.
uint32_t LargestUnits(const SparseForm& form, const Strip& strip, int64_t group) {
  std::array<Magnitude, kMostUnits> magnitudes;
  for (int64_t i = 0; i < form.group_units; ++i) {
    magnitudes[static_cast<size_t>(i)] = strip.Sum(0, 1, group * form.group_units + i);
  }
  uint32_t kept = 0;
  while (std::popcount(kept) < form.kept_units()) {
    int largest = std::countr_one(kept);
    for (int i = largest + 1; i < form.group_units; ++i) {
      const bool is_left = (kept >> i & 1) == 0;
      if (is_left && magnitudes[static_cast<size_t>(i)] > magnitudes[static_cast<size_t>(largest)])
        largest = i;
    }
    kept |= uint32_t{1} << largest;
  }
  return kept;
}

// A choice of units of a square tile: for each row of units, those that are kept, as bits.
using Pattern = std::array<uint8_t, kMostUnits>;

// All choices of half of each row and each column of a square of `units`, in the order of
// preference among equals.
std::vector<Pattern> MakePatterns(int64_t units) {
  // Halves of a row, lower indices first.
  static constexpr std::array<uint8_t, 2> kOfTwo = {0b01, 0b10};
  static constexpr std::array<uint8_t, 6> kOfFour = {0b0011, 0b0101, 0b1001,
                                                     0b0110, 0b1010, 0b1100};
  if (units == 2) return {{kOfTwo[0], kOfTwo[1]}, {kOfTwo[1], kOfTwo[0]}};
  std::vector<Pattern> patterns;
  for (uint8_t first : kOfFour) {
    for (uint8_t second : kOfFour) {
      for (uint8_t third : kOfFour) {
        // The last row is to bring every column to two: so each must have one or two by now.
        const bool has_three = (first & second & third) != 0;
        const bool has_none = (first | second | third) != 0b1111;
        if (has_three || has_none) continue;
        patterns.push_back({first, second, third, static_cast<uint8_t>(first ^ second ^ third)});
      }
    }
  }
  return patterns;
}

// What each choice of units of a row of a tile would keep, by its bits.
using RowSums = std::array<Magnitude, 1 << kMostUnits>;

RowSums SumsOfChoices(const SparseForm& form, const Strip& strip, int64_t row, int64_t group) {
  RowSums sums;
  const uint32_t choices = uint32_t{1} << form.group_units;
  for (int64_t i = 0; i < form.group_units; ++i) {
    const Magnitude unit =
        strip.Sum(row * form.unit, (row + 1) * form.unit, group * form.group_units + i);
    for (uint32_t choice = 0; choice < choices; ++choice) {
      if ((choice >> i & 1) != 0) sums[choice] += unit;
    }
  }
  return sums;
}

const Pattern& LargestPattern(const SparseForm& form, const std::vector<Pattern>& patterns,
                              const Strip& strip, int64_t group) {
  std::array<RowSums, kMostUnits> sums;
  for (int64_t row = 0; row < form.group_units; ++row) {
    sums[static_cast<size_t>(row)] = SumsOfChoices(form, strip, row, group);
  }
  const Pattern* largest = nullptr;
  Magnitude most;
  for (const Pattern& pattern : patterns) {
    Magnitude sum;
    for (size_t row = 0; row < static_cast<size_t>(form.group_units); ++row) {
      sum += sums[row][pattern[row]];
    }
    if (largest != nullptr && !(sum > most)) continue;
    largest = &pattern;
    most = sum;
  }
  return *largest;
}

}  // namespace

int64_t Prune(const SparseLayout& layout, std::byte* dense) {
  if (layout.columns == 0) return 0;
  const SparseForm& form = layout.form;
  Strip strip(layout, 1);
  int64_t cleared = 0;
  for (int64_t row = 0; row < layout.rows; ++row) {
    strip.Read(dense + row * layout.dense_line_bytes, 1);
    for (int64_t group = 0; group < layout.groups; ++group) {
      const uint32_t kept = LargestUnits(form, strip, group);
      for (int64_t i = 0; i < form.group_units; ++i) {
        if ((kept >> i & 1) == 0) cleared += strip.Clear(0, 1, group * form.group_units + i);
      }
    }
  }
  return cleared;
}

int64_t PruneBothWays(const SparseLayout& layout, std::byte* dense) {
  if (layout.columns == 0) return 0;
  const SparseForm& form = layout.form;
  const int64_t tile = form.group();
  const std::vector<Pattern> patterns = MakePatterns(form.group_units);
  Strip strip(layout, std::min(tile, layout.rows));
  int64_t cleared = 0;
  for (int64_t first = 0; first < layout.rows; first += tile) {
    strip.Read(dense + first * layout.dense_line_bytes, std::min(tile, layout.rows - first));
    for (int64_t group = 0; group < layout.groups; ++group) {
      const Pattern& kept = LargestPattern(form, patterns, strip, group);
      for (int64_t row = 0; row < form.group_units; ++row) {
        for (int64_t i = 0; i < form.group_units; ++i) {
          if ((kept[static_cast<size_t>(row)] >> i & 1) != 0) continue;
          cleared +=
              strip.Clear(row * form.unit, (row + 1) * form.unit, group * form.group_units + i);
        }
      }
    }
  }
  return cleared;
}

}  // namespace gemmd
