// SPDX-License-Identifier: Apache-2.0
//
// The sparse format and pruning, group by group as the threads of a GPU do them.
#include "kernels/cuda/operands/sparse_groups.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cuda/operands/prune_groups.h"
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

int64_t PruneAll(const SparseLayout& layout, SparseBytes& dense) {
  const SparseJob job = SparseJobOf(layout, dense.data(), nullptr);
  int64_t cleared = 0;
  ForPieces(layout, layout.groups, [&]<typename Form>(Form, int64_t row, int64_t group) {
    cleared += PruneGroup<Form>(job, row, group);
  });
  return cleared;
}

template <typename Form>
int64_t PruneTile(const SparseJob& job, int64_t tile, int64_t group) {
  constexpr int kUnits = Form::kGroupUnits;
  constexpr auto kPatterns = MakeTilePatterns<kUnits>();
  Magnitude squares[kUnits * kUnits];
  for (int i = 0; i < kUnits * kUnits; ++i) {
    squares[i] = MagnitudeOfSquare<Form>(job, tile, group, i / kUnits, i % kUnits);
  }
  // Starts from the end, which shows that the order of preference counts.
  Choice choice;
  choice.pattern = static_cast<int>(kPatterns.size()) - 1;
  choice.magnitude = MagnitudeOfPattern<Form>(squares, kPatterns.back());
  for (int i = choice.pattern; i >= 0; --i) {
    const Choice other = {MagnitudeOfPattern<Form>(squares, kPatterns[static_cast<size_t>(i)]), i};
    if (other.IsBetterThan(choice)) choice = other;
  }
  int64_t cleared = 0;
  for (int line = 0; line < kUnits * job.layout.form.unit; ++line) {
    cleared += KeepLineOfTile<Form>(job, tile, group, line,
                                    kPatterns[static_cast<size_t>(choice.pattern)]);
  }
  return cleared;
}

int64_t PruneAllBothWays(const SparseLayout& layout, SparseBytes& dense) {
  const SparseJob job = SparseJobOf(layout, dense.data(), nullptr);
  const int64_t size = layout.form.group();
  int64_t cleared = 0;
  WithGroupForm(layout, [&]<typename Form>(Form) {
    for (int64_t tile = 0; tile * size < layout.rows; ++tile) {
      for (int64_t group = 0; group < layout.groups; ++group) {
        cleared += PruneTile<Form>(job, tile, group);
      }
    }
  });
  return cleared;
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

const SparseFunctions kOnHost = {PruneAll,           PruneAllBothWays, CheckAllPruned,
                                 CheckAllCompressed, CompressAll,      ExpandAll};

TEST(SparseGroupsTest, Pruning) {
  RandomSource random;
  CheckPruning(kOnHost, random);
}

TEST(SparseGroupsTest, Compressing) {
  RandomSource random;
  CheckCompressing(kOnHost, random);
}

TEST(SparseGroupsTest, Faults) {
  RandomSource random;
  CheckFaults(kOnHost, random);
}

}  // namespace
}  // namespace gemmd
