// SPDX-License-Identifier: Apache-2.0
//
// Pruning by a mask, compared with brute force, element by element.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/matrix/sparse24.h"
#include "tests/kernels/sparse_case.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

class MaskTest : public testing::TestWithParam<ElementType> {
 protected:
  const ElementType type_ = GetParam();
  const SparseForm form_ = SparseFormOf(type_).value();
  RandomSource random_;

  // Any bits, also behind the last element of a line.
  std::vector<std::byte> AnyBytes(int64_t bytes) {
    std::vector<std::byte> any(static_cast<size_t>(bytes));
    for (std::byte& byte : any) byte = static_cast<std::byte>(random_.Bits());
    return any;
  }

  static int64_t MaskLineBytes(const SparseLayout& layout) { return (layout.columns + 7) / 8; }
  static bool IsMarked(const SparseLayout& layout, const std::vector<std::byte>& mask, int64_t row,
                       int64_t column) {
    return LoadBits(ElementType::kB1, mask.data() + row * MaskLineBytes(layout), column) != 0;
  }

  // The marked units of a group.
  std::set<int64_t> MarkedUnits(const SparseLayout& layout, const std::vector<std::byte>& mask,
                                int64_t row, int64_t group) const {
    std::set<int64_t> units;
    for (int64_t column = group * form_.group();
         column < std::min((group + 1) * form_.group(), layout.columns); ++column) {
      if (IsMarked(layout, mask, row, column)) units.insert(column / form_.unit);
    }
    return units;
  }

  // Unmarks elements until every group may keep the remaining ones.
  void Thin(const SparseLayout& layout, std::vector<std::byte>& mask) const {
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t column = layout.columns - 1; column >= 0; --column) {
        const int64_t group = column / form_.group();
        const auto units = MarkedUnits(layout, mask, row, group);
        if (static_cast<int64_t>(units.size()) <= form_.kept_units()) continue;
        StoreBits(ElementType::kB1, mask.data() + row * MaskLineBytes(layout), column, 0);
      }
    }
  }
};

TEST_P(MaskTest, KeepsWhatIsMarked) {
  for (const int64_t columns : {1, 2, 3, 7, 8, 16, 33, 71}) {
    const SparseLayout layout = LayoutFor(type_, 5, columns);
    DenseBits dense(layout);
    const std::vector<std::byte> any = AnyBytes(layout.dense_bytes);
    std::copy(any.begin(), any.end(), dense.data());
    std::vector<std::byte> mask = AnyBytes(layout.rows * MaskLineBytes(layout));
    Thin(layout, mask);
    const DenseBits before = dense;
    EXPECT_FALSE(KeepMarked(layout, mask.data(), dense.data()).has_value());
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        EXPECT_EQ(dense.Get(row, column),
                  IsMarked(layout, mask, row, column) ? before.Get(row, column) : 0)
            << NameOf(type_) << " " << row << ", " << column << " of " << columns;
      }
    }
    EXPECT_THAT(CheckPruned("a", layout, dense.data()), IsOk());
  }
}

TEST_P(MaskTest, TellsTheFirstGroupThatIsTooFull) {
  const SparseLayout layout = LayoutFor(type_, 4, 3 * form_.group() + form_.group() / 2);
  DenseBits dense(layout);
  std::vector<std::byte> mask = AnyBytes(layout.rows * MaskLineBytes(layout));
  Thin(layout, mask);
  // One unit more in row 2, group 1, than may be kept; and all of row 3.
  std::byte* const line = mask.data() + 2 * MaskLineBytes(layout);
  for (int64_t unit = 0; unit <= form_.kept_units(); ++unit) {
    StoreBits(ElementType::kB1, line, form_.group() + unit * form_.unit, 1);
  }
  for (int64_t i = 0; i < MaskLineBytes(layout); ++i) {
    mask[static_cast<size_t>(3 * MaskLineBytes(layout) + i)] = std::byte{0xff};
  }
  const auto marked = MarkedUnits(layout, mask, 2, 1);
  const auto overfull = KeepMarked(layout, mask.data(), dense.data());
  ASSERT_TRUE(overfull.has_value());
  EXPECT_EQ(overfull->row, 2);
  EXPECT_EQ(overfull->group, 1);
  EXPECT_EQ(overfull->units, static_cast<int>(marked.size()));
}

INSTANTIATE_TEST_SUITE_P(Types, MaskTest, testing::ValuesIn(SparseTypes()),
                         [](const auto& param_info) {
                           return std::string(NameOf(param_info.param));
                         });

}  // namespace
}  // namespace gemmd
