// SPDX-License-Identifier: Apache-2.0
//
// Pruning compared with brute force.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/text.h"
#include "tests/kernels/sparse_case.h"
#include "tests/testing/special_values.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using enum ElementType;

// The numbers of NaNs and of infinities among some elements, and the sum of the others' magnitudes.
// Arrays compare as sparse24.h defines.
using Magnitude = std::array<double, 3>;

void Add(Magnitude& sum, const Magnitude& other) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
}

Magnitude MagnitudeOf(double value) {
  if (std::isnan(value)) return {1, 0, 0};
  if (std::isinf(value)) return {0, 1, 0};
  return {0, 0, std::fabs(value)};
}

class PruneTest : public testing::TestWithParam<ElementType> {
 protected:
  const ElementType type_ = GetParam();
  const SparseForm form_ = SparseFormOf(type_).value();
  RandomSource random_;

  // Small integers, many of them equal; so sums are exact and ties are common.
  DenseBits RandomMatrix(const SparseLayout& layout) {
    DenseBits dense(layout);
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t column = 0; column < layout.columns; ++column) {
        const auto value = static_cast<double>(random_.Between(-4, 4));
        dense.Set(row, column, Encode(type_, value));
      }
    }
    return dense;
  }

  // Any bits: specials, numbers of all magnitudes, and garbage behind the last element of a line.
  DenseBits AnyMatrix(const SparseLayout& layout) {
    DenseBits dense(layout);
    for (int64_t i = 0; i < layout.dense_bytes; ++i) {
      dense.data()[i] = static_cast<std::byte>(random_.Bits());
    }
    return dense;
  }

  // The magnitude of the elements of a block of units; zero beyond the matrix.
  static Magnitude BlockMagnitude(const SparseLayout& layout, const DenseBits& dense, int64_t row,
                                  int64_t rows, int64_t unit) {
    Magnitude sum = {};
    for (int64_t i = row; i < std::min(row + rows, layout.rows); ++i) {
      for (int64_t e = 0; e < layout.form.unit; ++e) {
        const int64_t column = unit * layout.form.unit + e;
        if (column < layout.columns) Add(sum, MagnitudeOf(dense.Value(i, column)));
      }
    }
    return sum;
  }

  // Zeroes the units for which `keeps`(unit row, unit) is false; `rows` rows form a row of units.
  template <typename Keeps>
  DenseBits Masked(const SparseLayout& layout, const DenseBits& dense, int64_t rows,
                   int64_t* dropped, const Keeps& keeps) {
    DenseBits masked = dense;
    *dropped = 0;
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t column = 0; column < layout.columns; ++column) {
        if (keeps(row / rows, column / layout.form.unit)) continue;
        *dropped += dense.Value(row, column) != 0 ? 1 : 0;
        masked.Set(row, column, 0);
      }
    }
    return masked;
  }

  // The best choice of one group of a row: of all its halves, in order of their lowest index, the
  // first with the largest magnitude.
  uint32_t BestChoice(const SparseLayout& layout, const DenseBits& dense, int64_t row,
                      int64_t group) {
    uint32_t best = 0;
    Magnitude most = {-1, 0, 0};
    for (uint32_t choice : Halves()) {
      Magnitude sum = {};
      for (int64_t i = 0; i < form_.group_units; ++i) {
        if ((choice >> i & 1) == 0) continue;
        Add(sum, BlockMagnitude(layout, dense, row, 1, group * form_.group_units + i));
      }
      if (sum > most) {
        most = sum;
        best = choice;
      }
    }
    return best;
  }

  // The same if sums may be rounded: the largest units one by one.
  uint32_t LargestUnits(const SparseLayout& layout, const DenseBits& dense, int64_t row,
                        int64_t group) {
    std::vector<std::pair<Magnitude, int64_t>> units;
    for (int64_t i = 0; i < form_.group_units; ++i) {
      units.emplace_back(BlockMagnitude(layout, dense, row, 1, group * form_.group_units + i), i);
    }
    std::stable_sort(units.begin(), units.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    uint32_t kept = 0;
    for (int64_t i = 0; i < form_.kept_units(); ++i) {
      kept |= uint32_t{1} << units[static_cast<size_t>(i)].second;
    }
    return kept;
  }

  std::vector<uint32_t> Halves() const {
    if (form_.group_units == 2) return {1, 2};
    return {0b0011, 0b0101, 0b1001, 0b0110, 0b1010, 0b1100};
  }

  // The best choices of all rows of a square tile, rows of units first.
  std::vector<uint32_t> BestTile(const SparseLayout& layout, const DenseBits& dense, int64_t tile,
                                 int64_t group, int* valid) {
    const auto size = static_cast<size_t>(form_.group_units);
    const std::vector<uint32_t> halves = Halves();
    std::vector<size_t> turn(size, 0);
    std::vector<uint32_t> best;
    Magnitude most = {-1, 0, 0};
    *valid = 0;
    while (true) {
      std::vector<uint32_t> choice;
      for (size_t index : turn) choice.push_back(halves[index]);
      const std::optional<Magnitude> sum = TileMagnitude(layout, dense, tile, group, choice);
      if (sum) ++*valid;
      if (sum && *sum > most) {
        most = *sum;
        best = choice;
      }
      size_t row = size;
      while (row > 0 && ++turn[row - 1] == halves.size()) turn[--row] = 0;
      if (row == 0) return best;
    }
  }

  // Absent if a column of units does not keep exactly half. Adds up each row of units, then the
  // rows.
  std::optional<Magnitude> TileMagnitude(const SparseLayout& layout, const DenseBits& dense,
                                         int64_t tile, int64_t group,
                                         const std::vector<uint32_t>& choice) {
    for (int64_t i = 0; i < form_.group_units; ++i) {
      const auto kept = std::count_if(choice.begin(), choice.end(),
                                      [i](uint32_t units) { return (units >> i & 1) != 0; });
      if (kept != form_.kept_units()) return std::nullopt;
    }
    Magnitude sum = {};
    for (int64_t row = 0; row < form_.group_units; ++row) {
      Magnitude of_row = {};
      for (int64_t i = 0; i < form_.group_units; ++i) {
        if ((choice[static_cast<size_t>(row)] >> i & 1) == 0) continue;
        Add(of_row, BlockMagnitude(layout, dense, (tile * form_.group_units + row) * form_.unit,
                                   form_.unit, group * form_.group_units + i));
      }
      Add(sum, of_row);
    }
    return sum;
  }

  void CheckBothWays(const SparseLayout& layout, DenseBits dense) {
    const int64_t size = form_.group();
    std::vector<std::vector<uint32_t>> best;
    for (int64_t tile = 0; tile * size < layout.rows; ++tile) {
      for (int64_t group = 0; group < layout.groups; ++group) {
        int valid = 0;
        best.push_back(BestTile(layout, dense, tile, group, &valid));
        EXPECT_EQ(valid, form_.group_units == 4 ? 90 : 2);
      }
    }
    int64_t dropped = 0;
    const DenseBits want =
        Masked(layout, dense, form_.unit, &dropped, [&](int64_t row, int64_t unit) {
          const int64_t tile = row / form_.group_units * layout.groups + unit / form_.group_units;
          const auto& choice = best[static_cast<size_t>(tile)];
          return (choice[static_cast<size_t>(row % form_.group_units)] >> unit % form_.group_units &
                  1) != 0;
        });
    EXPECT_EQ(PruneBothWays(layout, dense.data()), dropped);
    ASSERT_EQ(dense.bytes(), want.bytes()) << layout.rows << "x" << layout.columns;
  }
};

TEST_P(PruneTest, KeepsTheLargestOfEachGroup) {
  SCOPED_TRACE(random_.trace());
  for (int64_t columns = 0; columns <= 2 * form_.group() + 1; ++columns) {
    for (int turn = 0; turn < 20; ++turn) {
      const SparseLayout layout = LayoutFor(type_, 3, columns);
      DenseBits dense = RandomMatrix(layout);
      int64_t dropped = 0;
      const DenseBits want = Masked(layout, dense, 1, &dropped, [&](int64_t row, int64_t unit) {
        const int64_t group = unit / form_.group_units;
        return (BestChoice(layout, dense, row, group) >> unit % form_.group_units & 1) != 0;
      });
      EXPECT_EQ(PruneByMagnitude(layout, dense.data()), dropped);
      ASSERT_EQ(dense.bytes(), want.bytes()) << "k = " << columns;
      ASSERT_THAT(CheckPruned("a.data", layout, dense.data()), IsOk());
      EXPECT_EQ(PruneByMagnitude(layout, dense.data()), 0);
    }
  }
}

TEST_P(PruneTest, BothWaysKeepsTheBestOfAllPatterns) {
  SCOPED_TRACE(random_.trace());
  const int64_t size = form_.group();
  for (int turn = 0; turn < 30; ++turn) {
    const int64_t rows = random_.Between(1, 2 * size + 1);
    const int64_t columns = turn == 0 ? size : random_.Between(1, 2 * size + 1);
    const SparseLayout layout = LayoutFor(type_, rows, columns);
    CheckBothWays(layout, RandomMatrix(layout));
    if (HasFatalFailure()) return;
    CheckBothWays(layout, AnyMatrix(layout));
    if (HasFatalFailure()) return;
  }
}

TEST_P(PruneTest, KeepsTheLargestOfAnyBits) {
  SCOPED_TRACE(random_.trace());
  std::vector<SparseLayout> layouts = {LayoutFor(type_, 33, 515), LayoutFor(type_, 64, 1024)};
  for (int64_t columns = 0; columns <= 4 * form_.group() + 1; ++columns) {
    layouts.push_back(LayoutFor(type_, random_.Between(0, 2 * form_.group() + 1), columns));
  }
  for (const SparseLayout& layout : layouts) {
    DenseBits dense = AnyMatrix(layout);
    std::vector<uint32_t> kept;  // One for each group, row by row.
    for (int64_t i = 0; i < layout.rows * layout.groups; ++i) {
      kept.push_back(LargestUnits(layout, dense, i / layout.groups, i % layout.groups));
    }
    int64_t dropped = 0;
    const DenseBits want = Masked(layout, dense, 1, &dropped, [&](int64_t row, int64_t unit) {
      const int64_t group = row * layout.groups + unit / form_.group_units;
      return (kept[static_cast<size_t>(group)] >> unit % form_.group_units & 1) != 0;
    });
    EXPECT_EQ(PruneByMagnitude(layout, dense.data()), dropped);
    ASSERT_EQ(dense.bytes(), want.bytes()) << layout.rows << "x" << layout.columns;
  }
}

// The transposed matrix has the form too.
TEST_P(PruneTest, BothWaysHoldsForTheTransposed) {
  const SparseLayout layout = LayoutFor(type_, 37, 43);
  const SparseLayout transposed_layout = LayoutFor(type_, 43, 37);
  DenseBits dense(layout);
  for (int64_t row = 0; row < 37; ++row) {
    for (int64_t column = 0; column < 43; ++column) {
      dense.Set(row, column, RandomNonzero(type_, random_));
    }
  }
  PruneBothWays(layout, dense.data());
  DenseBits transposed(transposed_layout);
  for (int64_t row = 0; row < 37; ++row) {
    for (int64_t column = 0; column < 43; ++column) {
      transposed.Set(column, row, dense.Get(row, column));
    }
  }
  EXPECT_THAT(CheckPruned("a.data", layout, dense.data()), IsOk());
  EXPECT_THAT(CheckPruned("a.data", transposed_layout, transposed.data()), IsOk());
}

TEST_P(PruneTest, EmptyMatrices) {
  EXPECT_EQ(PruneByMagnitude(LayoutFor(type_, 0, 8), nullptr), 0);
  EXPECT_EQ(PruneByMagnitude(LayoutFor(type_, 8, 0), nullptr), 0);
  EXPECT_EQ(PruneBothWays(LayoutFor(type_, 0, 8), nullptr), 0);
  EXPECT_EQ(PruneBothWays(LayoutFor(type_, 8, 0), nullptr), 0);
}

INSTANTIATE_TEST_SUITE_P(All, PruneTest, testing::ValuesIn(SparseTypes()),
                         [](const testing::TestParamInfo<ElementType>& type) {
                           return std::string(NameOf(type.param));
                         });

DenseBits RowOf(const SparseLayout& layout, const std::vector<double>& values) {
  DenseBits dense(layout);
  for (size_t i = 0; i < values.size(); ++i) {
    dense.Set(0, static_cast<int64_t>(i), Encode(layout.type, values[i]));
  }
  return dense;
}

TEST(PruneSpecialsTest, NanThenInfinityThenNumbers) {
  const SparseLayout layout = LayoutFor(kF16, 1, 12);
  DenseBits dense = RowOf(layout, {kInfinity, 65504, kNan, -kInfinity, 65504, -kInfinity, 1, 2,
                                   kInfinity, -kNan, kNan, 3});
  const DenseBits want =
      RowOf(layout, {kInfinity, 0, kNan, 0, 65504, -kInfinity, 0, 0, 0, -kNan, kNan, 0});
  EXPECT_EQ(PruneByMagnitude(layout, dense.data()), 6);
  EXPECT_EQ(dense.bytes(), want.bytes());
}

// If infinities are kept in either case, the finite elements beside them decide.
TEST(PruneSpecialsTest, InfinitiesHideNothingOfATile) {
  const SparseLayout layout = LayoutFor(kBf16, 4, 4);
  DenseBits dense(layout);
  for (int64_t i = 0; i < 4; ++i) dense.Set(i, i, Encode(kBf16, kInfinity));
  for (int64_t i = 0; i < 4; ++i) dense.Set(i, 3 - i, Encode(kBf16, 2));
  dense.Set(0, 1, Encode(kBf16, 1));
  dense.Set(3, 2, Encode(kBf16, 1));
  DenseBits want = dense;
  want.Set(0, 1, 0);
  want.Set(3, 2, 0);
  EXPECT_EQ(PruneBothWays(layout, dense.data()), 2);
  EXPECT_EQ(dense.bytes(), want.bytes());
}

TEST(PruneSpecialsTest, SmallestIntegerIsTheLargestMagnitude) {
  const SparseLayout layout = LayoutFor(kS8, 1, 4);
  DenseBits dense = RowOf(layout, {127, 126, 127, -128});
  EXPECT_EQ(PruneByMagnitude(layout, dense.data()), 2);
  EXPECT_EQ(dense.bytes(), RowOf(layout, {127, 0, 0, -128}).bytes());
}

// A dropped -0 does not count as a loss, but becomes +0; kept elements keep their bits.
TEST(PruneSpecialsTest, NegativeZeros) {
  const SparseLayout layout = LayoutFor(kF32, 1, 4);
  DenseBits dense = RowOf(layout, {-0.0, -0.0, -0.0, 1});
  EXPECT_EQ(PruneByMagnitude(layout, dense.data()), 0);
  EXPECT_EQ(dense.bytes(), RowOf(layout, {-0.0, 0, 0, 1}).bytes());
}

}  // namespace
}  // namespace gemmd
