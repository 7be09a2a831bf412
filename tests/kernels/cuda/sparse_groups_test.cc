// SPDX-License-Identifier: Apache-2.0
//
// The sparse format, group by group as the threads of a GPU process it. Pruning has one
// implementation, which the tests of sparse24.h check.
#include "kernels/matrix/sparse_groups.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kernels/cuda/sparse_checks.h"

namespace gemmd {
namespace {

std::byte* Unconst(const SparseBytes& bytes) { return const_cast<std::byte*>(bytes.data()); }

bool IsEmpty(const SparseLayout& layout) { return layout.rows == 0 || layout.columns == 0; }

// Calls visit(form, row, piece).
template <typename Visit>
void ForPieces(const SparseLayout& layout, int64_t pieces_of_row, const Visit& visit) {
  WithGroupForm(layout, [&](auto form) {
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t piece = 0; piece < pieces_of_row; ++piece) visit(form, row, piece);
    }
  });
}

absl::Status CheckAllPruned(const SparseLayout& layout, const SparseBytes& dense) {
  const SparseJob job = SparseJobOf(layout, Unconst(dense), nullptr);
  BadGroup bad = kNoBadGroup;
  ForPieces(layout, layout.groups, [&]<typename Form>(Form, int64_t row, int64_t group) {
    const uint32_t fault = PrunedFault<Form>(job, row, group);
    if (fault != 0) bad = std::min(bad, MakeBadGroup(row * layout.groups + group, fault));
  });
  return PrunedRefusal("a.data", layout, bad);
}

absl::Status CheckAllCompressed(const SparseLayout& layout, const SparseBytes& compressed) {
  if (IsEmpty(layout)) return absl::OkStatus();
  const SparseJob job = SparseJobOf(layout, nullptr, Unconst(compressed));
  BadGroup bad = kNoBadGroup;
  ForPieces(layout, layout.groups, [&]<typename Form>(Form, int64_t row, int64_t group) {
    const uint32_t fault = CompressedFault<Form>(job, row, group);
    if (fault != 0) bad = std::min(bad, MakeBadGroup(row * layout.groups + group, fault));
  });
  return CompressedRefusal("a.data", layout, bad);
}

absl::Status CompressAll(const SparseLayout& layout, const SparseBytes& dense,
                         SparseBytes& compressed) {
  const SparseJob job = SparseJobOf(layout, Unconst(dense), compressed.data());
  BadGroup bad = kNoBadGroup;
  ForPieces(layout, layout.index_line_bytes, [&]<typename Form>(Form, int64_t row, int64_t span) {
    bad = std::min(bad, CompressSpan<Form>(job, row, span));
  });
  return PrunedRefusal("a.data", layout, bad);
}

void ExpandAll(const SparseLayout& layout, const SparseBytes& compressed, SparseBytes& dense) {
  const SparseJob job = SparseJobOf(layout, dense.data(), Unconst(compressed));
  ForPieces(layout, layout.groups, [&]<typename Form>(Form, int64_t row, int64_t group) {
    ExpandGroup<Form>(job, row, group);
  });
}

const SparseFunctions kOnHost = {CheckAllPruned, CheckAllCompressed, CompressAll, ExpandAll};

TEST(SparseGroupsTest, Compressing) {
  RandomSource random;
  CheckCompressing(kOnHost, random);
}

TEST(SparseGroupsTest, CompressingViews) {
  RandomSource random;
  CheckCompressingViews(
      [](CompressView view, const SparseBytes& dense, const SparseBytes& mask,
         SparseBytes& compressed) {
        view.dense = dense.data();
        view.mask = mask.empty() ? nullptr : mask.data();
        view.compressed = compressed.data();
        return CompressLines(view);
      },
      random);
}

TEST(SparseGroupsTest, Faults) {
  RandomSource random;
  CheckFaults(kOnHost, random);
}

}  // namespace
}  // namespace gemmd
