// SPDX-License-Identifier: Apache-2.0
#include "kernels/mask24.h"

#include "kernels/mask_groups.h"
#include "kernels/sparse_groups.h"

namespace gemmd {
namespace {

// Clears what is not marked of a group. Returns how many of its units are marked.
template <typename Form>
int KeepMarkedElements(const SparseJob& job, int64_t row, int64_t group,
                       const std::byte* mask_line) {
  const MarkedGroup marked = MarkedGroupOf<Form>(job.layout, mask_line, group);
  const GroupPlace place = PlaceOf<Form>(job, row, group);
  const uint64_t word = LoadFew(place.place, place.bytes);
  StoreBytes(place.place, word & (marked.elements | ~place.inside), place.bytes);
  return marked.units;
}

}  // namespace

std::optional<OverfullGroup> KeepMarked(const SparseLayout& layout, const std::byte* mask,
                                        std::byte* dense) {
  const SparseJob job = SparseJobOf(layout, dense, nullptr);
  const int64_t mask_line_bytes = layout.columns / 8 + (layout.columns % 8 != 0 ? 1 : 0);
  return WithGroupForm(layout, [&]<typename Form>(Form) -> std::optional<OverfullGroup> {
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t group = 0; group < layout.groups; ++group) {
        const int units = KeepMarkedElements<Form>(job, row, group, mask + row * mask_line_bytes);
        if (units > Form::kKeptUnits) return OverfullGroup{row, group, units};
      }
    }
    return std::nullopt;
  });
}

}  // namespace gemmd
