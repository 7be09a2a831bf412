// SPDX-License-Identifier: Apache-2.0
#include "kernels/prune24.h"

#include "kernels/prune_groups.h"

namespace gemmd {
namespace {

// Prunes one square tile both ways. Returns how many nonzero elements became zero.
template <typename Form>
int64_t PruneTile(const SparseJob& job, int64_t tile, int64_t group) {
  constexpr int kUnits = Form::kGroupUnits;
  static constexpr auto kPatterns = MakeTilePatterns<kUnits>();
  Magnitude squares[kUnits * kUnits];
  for (int i = 0; i < kUnits * kUnits; ++i) {
    squares[i] = MagnitudeOfSquare<Form>(job, tile, group, i / kUnits, i % kUnits);
  }
  // Any order will do: a choice itself knows which of equals is preferred.
  int i = static_cast<int>(kPatterns.size()) - 1;
  Choice choice = {MagnitudeOfPattern<Form>(squares, kPatterns.back()), i};
  while (i-- > 0) {
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

}  // namespace

int64_t Prune(const SparseLayout& layout, std::byte* dense) {
  const SparseJob job = SparseJobOf(layout, dense, nullptr);
  return WithGroupForm(layout, [&]<typename Form>(Form) {
    int64_t cleared = 0;
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t group = 0; group < layout.groups; ++group) {
        cleared += PruneGroup<Form>(job, row, group);
      }
    }
    return cleared;
  });
}

int64_t PruneBothWays(const SparseLayout& layout, std::byte* dense) {
  const SparseJob job = SparseJobOf(layout, dense, nullptr);
  return WithGroupForm(layout, [&]<typename Form>(Form) {
    int64_t cleared = 0;
    for (int64_t tile = 0; tile * layout.form.group() < layout.rows; ++tile) {
      for (int64_t group = 0; group < layout.groups; ++group) {
        cleared += PruneTile<Form>(job, tile, group);
      }
    }
    return cleared;
  });
}

}  // namespace gemmd
