// SPDX-License-Identifier: Apache-2.0
//
// The portable sparse format: its bytes, every pattern of zeros, every pattern of indices.
#include "kernels/matrix/sparse24.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/matrix/text.h"
#include "tests/kernels/sparse_case.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using enum ElementType;
using testing::ElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::vector<std::byte> Bytes(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

std::vector<std::byte> Compressed(const SparseLayout& layout, const DenseBits& dense) {
  std::vector<std::byte> bytes(static_cast<size_t>(layout.bytes), std::byte{0xff});
  EXPECT_THAT(Compress("a.data", layout, dense.data(), bytes.data()), IsOk());
  return bytes;
}

std::vector<std::byte> Expanded(const SparseLayout& layout,
                                const std::vector<std::byte>& compressed) {
  std::vector<std::byte> dense(static_cast<size_t>(layout.dense_bytes), std::byte{0xff});
  Expand(layout, compressed.data(), dense.data());
  return dense;
}

std::vector<int64_t> ColumnsOf(const SparseLayout& layout, const std::vector<std::byte>& compressed,
                               int64_t row) {
  std::vector<int64_t> columns(static_cast<size_t>(layout.kept()));
  KeptColumns(layout, compressed.data(), row, columns.data());
  return columns;
}

// The indices that a test writes into one group; `second` is unused in 1:2.
void SetIndices(const SparseLayout& layout, int64_t row, int64_t group, int first, int second,
                std::vector<std::byte>& compressed) {
  const int64_t bits = layout.form.index_bits();
  const int64_t at =
      layout.rows * layout.value_line_bytes + row * layout.index_line_bytes + group * bits / 8;
  const auto shift = static_cast<int>(group * bits % 8);
  const int value = bits == 4 ? first | second << 2 : first;
  const int mask = ((1 << bits) - 1) << shift;
  std::byte& byte = compressed[static_cast<size_t>(at)];
  byte = (byte & ~static_cast<std::byte>(mask)) | static_cast<std::byte>(value << shift);
}

TEST(Sparse24Test, FormsOfTheTypes) {
  std::string forms;
  for (ElementType type : kAllElementTypes) {
    const auto form = SparseFormOf(type);
    forms += Concat(NameOf(type), " ", form ? form->name() : "none", ", ");
  }
  EXPECT_EQ(forms,
            "f64 none, f32 1:2, tf32 1:2, f16 2:4, bf16 2:4, e4m3 2:4, e5m2 2:4, e3m2 2:4, "
            "e2m3 2:4, e2m1 4:8, s8 2:4, u8 2:4, s4 4:8, u4 4:8, b1 none, s32 none, ");
}

TEST(Sparse24Test, BytesOf2To4) {
  const SparseLayout layout = LayoutFor(kS8, 2, 8);
  DenseBits dense(layout);
  dense.Set(0, 1, 11);
  dense.Set(0, 3, 13);
  dense.Set(0, 4, 14);
  dense.Set(0, 5, 15);
  dense.Set(1, 2, 22);
  // Row 0: 1 and 3, then 0 and 1. Row 1: 2, and 0 with an explicit zero; then nothing: 0 and 1.
  const auto want = Bytes({11, 13, 14, 15, 0, 22, 0, 0, 0b0100'1101, 0b0100'1000});
  EXPECT_EQ(Compressed(layout, dense), want);
  EXPECT_THAT(ColumnsOf(layout, want, 0), ElementsAre(1, 3, 4, 5));
  EXPECT_THAT(ColumnsOf(layout, want, 1), ElementsAre(0, 2, 4, 5));
}

TEST(Sparse24Test, BytesOf4To8) {
  const SparseLayout layout = LayoutFor(kU4, 1, 11);  // The last group has a pair and a half.
  DenseBits dense(layout);
  dense.Set(0, 3, 0xa);   // Pair 1.
  dense.Set(0, 6, 0xb);   // Pair 3.
  dense.Set(0, 10, 0xc);  // Pair 1 of the second group.
  const auto want = Bytes({0xa0, 0x0b, 0x00, 0x0c, 0b0100'1101});
  EXPECT_EQ(Compressed(layout, dense), want);
  EXPECT_THAT(ColumnsOf(layout, want, 0), ElementsAre(2, 3, 6, 7, 8, 9, 10, 11));
}

TEST(Sparse24Test, BytesOf1To2) {
  const SparseLayout layout = LayoutFor(kTf32, 1, 5);
  DenseBits dense(layout);
  dense.Set(0, 1, 0x3f80'1234);
  dense.Set(0, 2, 0x0000'1fff);  // Zero in tf32.
  dense.Set(0, 4, 0xbf80'0000);
  const auto want = Bytes({0x34, 0x12, 0x80, 0x3f, 0, 0, 0, 0, 0, 0, 0x80, 0xbf, 0b00'00'00'01});
  EXPECT_EQ(Compressed(layout, dense), want);
  EXPECT_THAT(ColumnsOf(layout, want, 0), ElementsAre(1, 2, 4));
}

TEST(Sparse24Test, BytesOfSixBits) {
  const SparseLayout layout = LayoutFor(kE2m3, 1, 7);
  DenseBits dense(layout);
  dense.Set(0, 0, 0x21);
  dense.Set(0, 2, 0x12);
  dense.Set(0, 6, 0x3f);
  // 24 bits of values: 100001 (low), 010010, 000000, 111111.
  const auto want = Bytes({0xa1, 0x04, 0xfc, 0b1000'1000});
  EXPECT_EQ(Compressed(layout, dense), want);
  EXPECT_THAT(ColumnsOf(layout, want, 0), ElementsAre(0, 2, 4, 6));
}

TEST(Sparse24Test, EmptyMatrices) {
  for (ElementType type : SparseTypes()) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{0, 9}, {5, 0}, {0, 0}}) {
      const SparseLayout layout = LayoutFor(type, rows, columns);
      EXPECT_EQ(layout.bytes, 0);
      EXPECT_EQ(layout.dense_bytes, 0);
      EXPECT_THAT(CheckPruned("a", layout, nullptr), IsOk());
      EXPECT_THAT(Compress("a", layout, nullptr, nullptr), IsOk());
      EXPECT_THAT(CheckCompressed("a", layout, nullptr), IsOk());
      Expand(layout, nullptr, nullptr);
    }
  }
}

TEST(Sparse24Test, Sizes) {
  EXPECT_EQ(LayoutFor(kF16, 3, 9).bytes, 3 * (6 * 2 + 2));  // 3 groups, 6 kept, 12 bits.
  EXPECT_EQ(LayoutFor(kE3m2, 3, 9).bytes, 3 * (5 + 2));     // 36 bits of values.
  EXPECT_EQ(LayoutFor(kE2m1, 3, 17).bytes, 3 * (6 + 2));    // 3 groups, 12 kept, 12 bits.
  EXPECT_EQ(LayoutFor(kF32, 3, 9).bytes, 3 * (5 * 4 + 2));  // 5 groups, 5 kept, 10 bits.
  EXPECT_THAT(SparseLayoutOf("a", kF16, INT64_MAX, INT64_MAX),
              StatusIs(kInvalid,
                       "a: got 9223372036854775807x9223372036854775807 elements of type "
                       "f16, want sizes in bytes below 2^63"));
  constexpr int64_t kEighth = int64_t{1} << 60;  // The largest k has this many groups of u4.
  EXPECT_EQ(LayoutFor(kU4, 1, INT64_MAX).bytes, 2 * kEighth + kEighth / 2);
  EXPECT_THAT(SparseLayoutOf("a", kU4, 2, INT64_MAX), StatusIs(kInvalid));
  EXPECT_THAT(SparseLayoutOf("a", kB1, 1, 1),
              StatusIs(kInvalid,
                       "a.sparsity: got 2:4 of type b1, want none (b1, s32 and f64 have "
                       "no sparse form)"));
}

class SparseTypeTest : public testing::TestWithParam<ElementType> {
 protected:
  const ElementType type_ = GetParam();
  const SparseForm form_ = SparseFormOf(type_).value();
  RandomSource random_;

  // Fills the group with as many nonzero elements as allowed, anywhere.
  void FillGroup(int64_t row, int64_t group, int64_t columns, DenseBits& dense) {
    std::vector<int64_t> units(static_cast<size_t>(form_.group_units));
    std::iota(units.begin(), units.end(), 0);
    for (int64_t i = 0; i < form_.kept_units(); ++i) {
      std::swap(units[static_cast<size_t>(i)],
                units[static_cast<size_t>(random_.Between(i, form_.group_units - 1))]);
      for (int64_t e = 0; e < form_.unit; ++e) {
        const int64_t column =
            (group * form_.group_units + units[static_cast<size_t>(i)]) * form_.unit + e;
        if (column < columns) dense.Set(row, column, RandomNonzero(type_, random_));
      }
    }
  }

  // A matrix of the form, as dense as allowed.
  DenseBits RandomMatrix(const SparseLayout& layout) {
    DenseBits dense(layout);
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t group = 0; group < layout.groups; ++group) {
        FillGroup(row, group, layout.columns, dense);
      }
    }
    return dense;
  }

  // Checks that compression keeps everything, in the documented format.
  void ExpectKept(const SparseLayout& layout, const DenseBits& dense) {
    EXPECT_THAT(CheckPruned("a.data", layout, dense.data()), IsOk());
    const std::vector<std::byte> compressed = Compressed(layout, dense);
    EXPECT_THAT(CheckCompressed("a.data", layout, compressed.data()), IsOk());
    EXPECT_EQ(Expanded(layout, compressed), dense.bytes());
    for (int64_t row = 0; row < layout.rows; ++row) {
      const std::vector<int64_t> columns = ColumnsOf(layout, compressed, row);
      const std::byte* values = compressed.data() + layout.values_offset(row);
      for (size_t i = 0; i < columns.size(); ++i) {
        const bool is_beyond = columns[i] >= layout.columns;
        ASSERT_EQ(LoadBits(layout.type, values, static_cast<int64_t>(i)),
                  is_beyond ? 0 : dense.Get(row, columns[i]));
        ASSERT_EQ(columns[i] / form_.group(), static_cast<int64_t>(i) / (form_.group() / 2));
        if (i == 0) continue;
        ASSERT_LT(columns[i - 1], columns[i]);
      }
    }
  }
};

// All patterns of zeros in every group of a matrix whose other groups are full, for every k up to
// three groups.
TEST_P(SparseTypeTest, EveryPatternOfZeros) {
  SCOPED_TRACE(random_.trace());
  for (int64_t columns = 0; columns <= 3 * form_.group(); ++columns) {
    const SparseLayout layout = LayoutFor(type_, 2, columns);
    for (int64_t group = 0; group < layout.groups; ++group) {
      const int64_t first = group * form_.group();
      const int64_t count = std::min(form_.group(), columns - first);
      for (uint32_t pattern = 0; pattern < uint32_t{1} << count; ++pattern) {
        SCOPED_TRACE(Concat("k ", columns, ", group ", group, ", pattern ", pattern));
        DenseBits dense = RandomMatrix(layout);
        uint32_t units = 0;
        for (int64_t i = 0; i < count; ++i) {
          const bool is_nonzero = (pattern >> i & 1) != 0;
          dense.Set(1, first + i, is_nonzero ? RandomNonzero(type_, random_) : 0);
          if (is_nonzero) units |= uint32_t{1} << i / form_.unit;
        }
        if (std::popcount(units) <= form_.kept_units()) {
          ExpectKept(layout, dense);
        } else {
          const std::string message =
              Concat("a.data: row 1, group ", group, ": got ", std::popcount(units), " nonzero ",
                     form_.unit == 2 ? "pairs" : "elements", ", want at most ", form_.kept_units());
          EXPECT_THAT(CheckPruned("a.data", layout, dense.data()), StatusIs(kInvalid, message));
          std::vector<std::byte> compressed(static_cast<size_t>(layout.bytes));
          EXPECT_THAT(Compress("a.data", layout, dense.data(), compressed.data()),
                      StatusIs(kInvalid, message));
        }
        if (HasFailure()) return;
      }
    }
  }
}

// All patterns of indices in every group of matrices whose lines of indices take several words.
TEST_P(SparseTypeTest, EveryPatternOfIndices) {
  SCOPED_TRACE(random_.trace());
  for (int64_t groups : {1, 2, 3, 16, 17, 33, 35}) {
    const SparseLayout layout = LayoutFor(type_, 2, groups * form_.group());
    const std::vector<std::byte> good = Compressed(layout, RandomMatrix(layout));
    for (int64_t group = 0; group < groups; ++group) {
      for (int first = 0; first < 4; ++first) {
        for (int second = 0; second < 4; ++second) {
          std::vector<std::byte> bytes = good;
          SetIndices(layout, 1, group, first, second, bytes);
          const absl::Status status = CheckCompressed("a.data", layout, bytes.data());
          const bool is_pair = form_.kept_units() == 2;
          const std::string place = Concat("a.data: row 1, group ", group, ": got ");
          if (is_pair ? first < second : first < 2) {
            EXPECT_THAT(status, IsOk());
          } else if (is_pair) {
            EXPECT_THAT(
                status,
                StatusIs(kInvalid, Concat(place, form_.unit == 2 ? "pair indices " : "indices ",
                                          first, ", ", second, ", want increasing")));
          } else {
            EXPECT_THAT(status,
                        StatusIs(kInvalid, Concat(place, "index ", first, ", want 0 or 1")));
          }
          Expanded(layout,
                   bytes);  // Any indices stay within the buffers, which AddressSanitizer watches.
          if (HasFailure()) return;
        }
      }
    }
  }
}

// The first of several bad groups is the one named.
TEST_P(SparseTypeTest, FirstBadGroup) {
  const SparseLayout layout = LayoutFor(type_, 3, 40 * form_.group());
  std::vector<std::byte> bytes = Compressed(layout, RandomMatrix(layout));
  for (const auto& [row, group] : {std::pair<int64_t, int64_t>{2, 0}, {1, 39}, {1, 20}, {1, 7}}) {
    SetIndices(layout, row, group, 3, 3, bytes);
    const absl::Status status = CheckCompressed("x", layout, bytes.data());
    EXPECT_THAT(
        status,
        StatusIs(kInvalid, testing::StartsWith(Concat("x: row ", row, ", group ", group, ": "))));
  }
}

// Elements beyond k must be zero, of either sign.
TEST_P(SparseTypeTest, NothingBeyondTheMatrix) {
  for (int64_t columns = 1; columns < 2 * form_.group(); ++columns) {
    const SparseLayout layout = LayoutFor(type_, 2, columns);
    const std::vector<std::byte> good = Compressed(layout, DenseBits(layout));
    for (int64_t kept = 0; kept < layout.kept(); ++kept) {
      std::vector<std::byte> bytes = good;
      const int64_t column = ColumnsOf(layout, good, 1)[static_cast<size_t>(kept)];
      std::byte* values = bytes.data() + layout.values_offset(1);
      if (IsFloat(type_)) {
        StoreBits(type_, values, kept, Encode(type_, -0.0));
        EXPECT_THAT(CheckCompressed("a.data", layout, bytes.data()), IsOk());
        const bool is_kept = column < columns;
        EXPECT_EQ(Expanded(layout, bytes) == Expanded(layout, good), !is_kept);
      }
      StoreBits(type_, values, kept, Encode(type_, 1));
      const absl::Status status = CheckCompressed("a.data", layout, bytes.data());
      if (column < columns) {
        EXPECT_THAT(status, IsOk());
      } else {
        EXPECT_THAT(status, StatusIs(kInvalid, Concat("a.data: row 1, group ", layout.groups - 1,
                                                      ": got a nonzero element at column ", column,
                                                      ", want 0 at columns from k = ", columns)));
      }
    }
  }
}

// Bits after the last index and the last value of a line are ignored.
TEST_P(SparseTypeTest, PaddingBitsHaveNoMeaning) {
  const SparseLayout layout = LayoutFor(type_, 2, form_.group());
  const DenseBits dense = RandomMatrix(layout);
  std::vector<std::byte> bytes = Compressed(layout, dense);
  const int64_t index_bits = form_.index_bits();
  const int64_t value_bits = layout.kept() * BitsOf(type_);
  for (int64_t row : {0, 1}) {
    bytes[static_cast<size_t>(layout.indices_offset(row))] |= std::byte{0xff}
                                                              << static_cast<int>(index_bits);
    if (value_bits % 8 == 0) continue;
    bytes[static_cast<size_t>(layout.values_offset(row) + value_bits / 8)] |=
        std::byte{0xff} << static_cast<int>(value_bits % 8);
  }
  EXPECT_THAT(CheckCompressed("a.data", layout, bytes.data()), IsOk());
  EXPECT_EQ(Expanded(layout, bytes), dense.bytes());
}

// Bits after the last element of a line of the dense matrix are ignored, and compression drops
// them.
TEST_P(SparseTypeTest, PaddingBitsOfTheDenseMatrix) {
  for (int64_t columns = 1; columns < form_.group(); ++columns) {
    const int64_t bits = columns * BitsOf(type_);
    if (bits % 8 == 0) continue;
    const SparseLayout layout = LayoutFor(type_, 1, columns);
    // The units before the last are full if all of them may be kept, so the last must be empty.
    DenseBits dense(layout);
    const int64_t units = (columns + form_.unit - 1) / form_.unit;
    for (int64_t i = 0; i < std::min(units - 1, form_.kept_units()) * form_.unit; ++i) {
      dense.Set(0, i, RandomNonzero(type_, random_));
    }
    const std::vector<std::byte> want = Compressed(layout, dense);
    dense.data()[bits / 8] |= std::byte{0xff} << static_cast<int>(bits % 8);
    EXPECT_THAT(CheckPruned("a.data", layout, dense.data()), IsOk()) << columns;
    EXPECT_EQ(Compressed(layout, dense), want) << columns;
    dense.Set(0, columns - 1, RandomNonzero(type_, random_));
    if (units > form_.kept_units()) continue;
    EXPECT_THAT(CheckCompressed("a.data", layout, Compressed(layout, dense).data()), IsOk());
  }
}

// A zero of either sign may be dropped; it becomes +0 then, and also if it is kept as padding.
TEST_P(SparseTypeTest, NegativeZeroIsZero) {
  if (!IsFloat(type_)) return;
  const SparseLayout layout = LayoutFor(type_, 1, form_.group());
  DenseBits dense(layout);
  for (int64_t i = 0; i < layout.columns; ++i) dense.Set(0, i, Encode(type_, -0.0));
  EXPECT_THAT(CheckPruned("a.data", layout, dense.data()), IsOk());
  EXPECT_EQ(Expanded(layout, Compressed(layout, dense)), DenseBits(layout).bytes());
}

std::string PrintSparseType(const testing::TestParamInfo<ElementType>& type) {
  return std::string(NameOf(type.param));
}

INSTANTIATE_TEST_SUITE_P(All, SparseTypeTest, testing::ValuesIn(SparseTypes()), PrintSparseType);

class LargeSparseTest : public SparseTypeTest {
 protected:
  // Large enough to be shared among threads.
  void ExpectLargeMatrixKept() {
    SCOPED_TRACE(random_.trace());
    const SparseLayout layout = LayoutFor(type_, 613, 40 * 32 + 5);
    ExpectKept(layout, RandomMatrix(layout));
  }
};
TEST_P(LargeSparseTest, IsKept) { ExpectLargeMatrixKept(); }
// One type of each form.
INSTANTIATE_TEST_SUITE_P(Forms, LargeSparseTest, testing::Values(kF32, kS8, kE2m1),
                         PrintSparseType);

class LargeSparseExhaustive : public LargeSparseTest {};
TEST_P(LargeSparseExhaustive, IsKept) { ExpectLargeMatrixKept(); }
INSTANTIATE_TEST_SUITE_P(All, LargeSparseExhaustive, testing::ValuesIn(SparseTypes()),
                         PrintSparseType);

}  // namespace
}  // namespace gemmd
