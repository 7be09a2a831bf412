// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cuda/sparse_checks.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/prune24.h"
#include "kernels/text.h"
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
  Prune(layout, dense.data());
  return dense;
}

SparseBytes CompressedRandom(const SparseLayout& layout, RandomSource& random) {
  const SparseBytes dense = PrunedDense(layout, random);
  SparseBytes compressed(static_cast<size_t>(layout.bytes));
  EXPECT_TRUE(Compress("a.data", layout, dense.data(), compressed.data()).ok());
  return compressed;
}

}  // namespace

void CheckPruning(const PruneFunctions& functions, RandomSource& random) {
  ForLayouts(random, [&](const SparseLayout& layout) {
    const SparseBytes dense = RandomDense(layout, random);
    SparseBytes want = dense;
    SparseBytes got = dense;
    ASSERT_EQ(functions.prune(layout, got), Prune(layout, want.data())) << Describe(layout);
    ASSERT_TRUE(got == want) << Describe(layout) << ", " << random.trace();
    want = dense;
    got = dense;
    ASSERT_EQ(functions.prune_both_ways(layout, got), PruneBothWays(layout, want.data()))
        << Describe(layout);
    ASSERT_TRUE(got == want) << "both ways, " << Describe(layout) << ", " << random.trace();
  });
}

void CheckCompressing(const SparseFunctions& functions, RandomSource& random) {
  ForLayouts(random, [&](const SparseLayout& layout) {
    const SparseBytes dense = PrunedDense(layout, random);
    ASSERT_TRUE(functions.check_pruned(layout, dense).ok()) << Describe(layout);
    SparseBytes want(static_cast<size_t>(layout.bytes), kPoison);
    SparseBytes got = want;
    ASSERT_TRUE(Compress("a.data", layout, dense.data(), want.data()).ok());
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
