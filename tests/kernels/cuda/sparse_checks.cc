// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cuda/sparse_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/text.h"
#include "tests/kernels/sparse_case.h"

namespace gemmd {
namespace {

constexpr std::byte kPoison{0xa5};
constexpr int kFaults = 30;

std::string Describe(const SparseLayout& layout) {
  return Concat(layout.rows, "x", layout.columns, " ", NameOf(layout.type));
}

// Any bits, also after the matrix; or small integers, many of which are equal.
SparseBytes RandomDense(const SparseLayout& layout, RandomSource& random) {
  SparseBytes bytes(static_cast<size_t>(layout.dense_bytes));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Bits());
  if (random.Flip()) return bytes;
  for (int64_t row = 0; row < layout.rows; ++row) {
    for (int64_t column = 0; column < layout.columns; ++column) {
      const auto value = static_cast<double>(random.Between(-4, 4));
      StoreBits(layout.type, bytes.data() + row * layout.dense_line_bytes, column,
                Encode(layout.type, value));
    }
  }
  return bytes;
}

template <typename Visit>
void ForLayouts(RandomSource& random, const Visit& visit) {
  for (ElementType type : SparseTypes()) {
    const int64_t group = SparseFormOf(type)->group();
    for (int64_t columns = 0; columns <= 4 * group + 1; ++columns) {
      visit(LayoutFor(type, random.Between(0, 2 * group + 1), columns));
      if (testing::Test::HasFatalFailure()) return;
    }
    visit(LayoutFor(type, 33, 515));
    visit(LayoutFor(type, 64, 1024));
    if (testing::Test::HasFatalFailure()) return;
  }
}

SparseBytes PrunedDense(const SparseLayout& layout, RandomSource& random) {
  SparseBytes dense = RandomDense(layout, random);
  PruneByMagnitude(layout, dense.data());
  return dense;
}

SparseBytes CompressedRandom(const SparseLayout& layout, RandomSource& random) {
  const SparseBytes dense = PrunedDense(layout, random);
  SparseBytes compressed(static_cast<size_t>(layout.bytes));
  EXPECT_TRUE(Compress("a.data", layout, dense.data(), compressed.data()).ok());
  return compressed;
}

// Several matrices whose lines have gaps.
struct Views {
  Views(const SparseLayout& one_of_them, RandomSource& random) : layout(one_of_them) {
    for (int64_t i = 0; i < matrices; ++i) {
      one.push_back(RandomDense(layout, random));
      one_mask.push_back(RandomMask(random));
    }
    view.layout = layout;
    view.dense_line_stride_bytes = layout.dense_line_bytes + random.Between(0, 3) * 4;
    view.dense_matrix_stride_bytes = view.dense_line_stride_bytes * layout.rows + 12;
    view.mask_line_stride_bytes = mask_line_bytes() + random.Between(0, 2);
    view.mask_matrix_stride_bytes = view.mask_line_stride_bytes * layout.rows + 5;
    view.end_line = matrices * layout.rows;
    dense = Spread(one, layout.dense_line_bytes, view.dense_line_stride_bytes,
                   view.dense_matrix_stride_bytes);
    mask = Spread(one_mask, mask_line_bytes(), view.mask_line_stride_bytes,
                  view.mask_matrix_stride_bytes);
  }

  int64_t mask_line_bytes() const { return (layout.columns + 7) / 8; }

  // Marks half of each group, and also marks beyond the end of the matrix.
  SparseBytes RandomMask(RandomSource& random) const {
    const auto unit = static_cast<int>(layout.form.unit);
    SparseBytes marks(static_cast<size_t>(layout.rows * mask_line_bytes()));
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t column = 0; column < layout.columns; ++column) {
        const int64_t in_group = column % layout.form.group() / unit;
        const bool is_kept = (in_group + row) % 2 == 0 && random.Between(0, 3) > 0;
        std::byte& byte = marks[static_cast<size_t>(row * mask_line_bytes() + column / 8)];
        if (is_kept) byte |= std::byte{1} << column % 8;
      }
    }
    return marks;
  }

  SparseBytes Spread(const std::vector<SparseBytes>& all, int64_t line_bytes, int64_t stride,
                     int64_t matrix_stride) const {
    SparseBytes bytes(static_cast<size_t>(matrix_stride * matrices), kPoison);
    for (int64_t i = 0; i < matrices; ++i) {
      for (int64_t row = 0; row < layout.rows; ++row) {
        std::copy_n(all[static_cast<size_t>(i)].begin() + row * line_bytes, line_bytes,
                    bytes.begin() + i * matrix_stride + row * stride);
      }
    }
    return bytes;
  }

  SparseBytes Want(bool has_mask) const {
    SparseBytes want;
    for (size_t i = 0; i < one.size(); ++i) {
      SparseBytes pruned = one[i];
      SparseBytes part(static_cast<size_t>(layout.bytes));
      if (has_mask) {
        EXPECT_FALSE(KeepMarked(layout, one_mask[i].data(), pruned.data()));
      } else {
        PruneByMagnitude(layout, pruned.data());
      }
      EXPECT_TRUE(Compress("a.data", layout, pruned.data(), part.data()).ok());
      want.insert(want.end(), part.begin(), part.end());
    }
    return want;
  }

  const SparseLayout layout;
  const int64_t matrices = 3;
  std::vector<SparseBytes> one;
  std::vector<SparseBytes> one_mask;
  CompressView view;
  SparseBytes dense;
  SparseBytes mask;
};

}  // namespace

void CheckCompressingViews(const CompressViewFunction& compress, RandomSource& random) {
  ForLayouts(random, [&](const SparseLayout& layout) {
    if (layout.rows == 0 || layout.columns == 0) return;
    const Views views(layout, random);
    for (const bool has_mask : {false, true}) {
      SparseBytes got(static_cast<size_t>(views.matrices * layout.bytes), kPoison);
      // In two parts; a matrix may be divided.
      const int64_t middle = random.Between(0, views.view.end_line);
      for (const auto& [first, end] :
           {std::pair{int64_t{0}, middle}, std::pair{middle, views.view.end_line}}) {
        CompressView view = views.view;
        view.first_line = first;
        view.end_line = end;
        const SparseBytes mask = has_mask ? views.mask : SparseBytes();
        ASSERT_EQ(compress(view, views.dense, mask, got), kNoBadGroup) << Describe(layout);
      }
      ASSERT_TRUE(got == views.Want(has_mask))
          << "view, " << (has_mask ? "masked, " : "") << Describe(layout) << ", " << random.trace();
    }
    SparseBytes all = views.mask;
    std::fill(all.begin(), all.end(), std::byte{0xff});
    SparseBytes got(static_cast<size_t>(views.matrices * layout.bytes));
    const BadGroup bad = compress(views.view, views.dense, all, got);
    const auto unit = layout.form.unit;
    const int64_t units = std::min(layout.form.group_units, (layout.columns + unit - 1) / unit);
    const bool is_full = units > layout.form.kept_units();
    ASSERT_EQ(bad, is_full ? MakeBadGroup(0, static_cast<uint32_t>(units)) : kNoBadGroup)
        << Describe(layout);
  });
}

void CheckPruning(const PruneFunctions& functions, RandomSource& random) {
  ForLayouts(random, [&](const SparseLayout& layout) {
    const SparseBytes dense = RandomDense(layout, random);
    SparseBytes want = dense;
    SparseBytes got = dense;
    ASSERT_EQ(functions.prune(layout, got), PruneByMagnitude(layout, want.data()))
        << Describe(layout);
    ASSERT_TRUE(got == want) << Describe(layout) << ", " << random.trace();
    want = dense;
    got = dense;
    ASSERT_EQ(functions.prune_both_ways(layout, got), PruneBothWays(layout, want.data()))
        << Describe(layout);
    ASSERT_TRUE(got == want) << "both ways, " << Describe(layout) << ", " << random.trace();
  });
}

// Whether an element of the unit of a group is not zero. Elements beyond the line are.
bool IsNonzero(const SparseLayout& layout, const std::byte* line, int64_t group, int64_t unit) {
  for (int64_t i = 0; i < layout.form.unit; ++i) {
    const int64_t column = (group * layout.form.group_units + unit) * layout.form.unit + i;
    if (column >= layout.columns) continue;
    if (!(Decode(layout.type, LoadBits(layout.type, line, column)) == 0)) return true;
  }
  return false;
}

// The compressed form of a pruned matrix, element by element: the nonzero units of each group, and
// if they are too few, also the first others.
SparseBytes CompressedByElements(const SparseLayout& layout, const SparseBytes& dense) {
  const SparseForm& form = layout.form;
  SparseBytes compressed(static_cast<size_t>(layout.bytes));
  for (int64_t row = 0; row < layout.rows; ++row) {
    const std::byte* const line = dense.data() + row * layout.dense_line_bytes;
    std::byte* const values = compressed.data() + layout.values_offset(row);
    std::byte* const indices = compressed.data() + layout.indices_offset(row);
    for (int64_t group = 0; group < layout.groups; ++group) {
      std::vector<int64_t> kept;
      for (const bool wanted : {true, false}) {
        for (int64_t unit = 0; unit < form.group_units; ++unit) {
          const bool is_full = static_cast<int64_t>(kept.size()) == form.kept_units();
          if (!is_full && IsNonzero(layout, line, group, unit) == wanted) kept.push_back(unit);
        }
      }
      std::sort(kept.begin(), kept.end());
      for (int64_t i = 0; i < form.kept_units(); ++i) {
        const int64_t target = group * form.kept_units() + i;
        const int64_t unit = kept[static_cast<size_t>(i)];
        indices[target / 4] |= static_cast<std::byte>(unit << target % 4 * 2);
        if (!IsNonzero(layout, line, group, unit)) continue;
        for (int64_t j = 0; j < form.unit; ++j) {
          const int64_t column = (group * form.group_units + unit) * form.unit + j;
          if (column >= layout.columns) continue;
          StoreBits(layout.type, values, target * form.unit + j,
                    LoadBits(layout.type, line, column));
        }
      }
    }
  }
  return compressed;
}

void CheckCompressing(const SparseFunctions& functions, RandomSource& random) {
  ForLayouts(random, [&](const SparseLayout& layout) {
    const SparseBytes dense = PrunedDense(layout, random);
    ASSERT_TRUE(functions.check_pruned(layout, dense).ok()) << Describe(layout);
    SparseBytes want(static_cast<size_t>(layout.bytes), kPoison);
    SparseBytes got = want;
    ASSERT_TRUE(Compress("a.data", layout, dense.data(), want.data()).ok());
    ASSERT_TRUE(want == CompressedByElements(layout, dense))
        << "by elements, " << Describe(layout) << ", " << random.trace();
    ASSERT_TRUE(functions.compress(layout, dense, got).ok()) << Describe(layout);
    ASSERT_TRUE(got == want) << "compress, " << Describe(layout) << ", " << random.trace();
    ASSERT_TRUE(functions.check_compressed(layout, got).ok()) << Describe(layout);
    SparseBytes dense_want(dense.size(), kPoison);
    SparseBytes dense_got = dense_want;
    Expand(layout, got.data(), dense_want.data());
    functions.expand(layout, got, dense_got);
    ASSERT_TRUE(dense_got == dense_want) << "expand, " << Describe(layout);
  });
}

void CheckFaults(const SparseFunctions& functions, RandomSource& random) {
  for (ElementType type : SparseTypes()) {
    const int64_t group = SparseFormOf(type)->group();
    for (int turn = 0; turn < kFaults; ++turn) {
      const SparseLayout layout =
          LayoutFor(type, random.Between(1, 9), random.Between(1, 5 * group));
      // One random unit, or a whole matrix of them.
      SparseBytes dense = turn == 0 ? RandomDense(layout, random) : PrunedDense(layout, random);
      StoreBits(type, dense.data() + random.Between(0, layout.rows - 1) * layout.dense_line_bytes,
                random.Between(0, layout.columns - 1), RandomNonzero(type, random));
      ASSERT_EQ(functions.check_pruned(layout, dense), CheckPruned("a.data", layout, dense.data()));
      SparseBytes bytes(static_cast<size_t>(layout.bytes));
      SparseBytes scratch = bytes;
      ASSERT_EQ(functions.compress(layout, dense, scratch),
                Compress("a.data", layout, dense.data(), bytes.data()));
      SparseBytes compressed = CompressedRandom(layout, random);
      for (int i = 0; i < 3; ++i) {
        compressed[static_cast<size_t>(random.Between(0, layout.bytes - 1))] ^=
            std::byte{1} << random.Between(0, 7);
      }
      ASSERT_EQ(functions.check_compressed(layout, compressed),
                CheckCompressed("a.data", layout, compressed.data()))
          << Describe(layout) << ", " << random.trace();
    }
  }
}

}  // namespace gemmd
