// SPDX-License-Identifier: Apache-2.0
#include "kernels/mask24.h"

#include "kernels/sparse_groups.h"

namespace gemmd {
namespace {

// A bit for each marked element of a group. A group has 2, 4 or 8 elements, so its marks lie in one
// byte.
uint32_t MarksOf(const SparseLayout& layout, const std::byte* mask_line, int64_t group) {
  const int64_t first = group * layout.form.group();
  const int64_t left = layout.columns - first;
  const int64_t count = left < layout.form.group() ? left : layout.form.group();
  const uint32_t marks = std::to_integer<uint32_t>(mask_line[first / 8]) >> first % 8;
  return marks & static_cast<uint32_t>(LowMask(static_cast<int>(count)));
}

// Clears what is not marked of a group. Returns how many of its units are marked.
template <typename Form>
int KeepMarkedElements(const SparseJob& job, int64_t row, int64_t group, uint32_t marks) {
  const int unit = static_cast<int>(job.layout.form.unit);
  const int bits = Form::kUnitBits / unit;
  uint64_t kept = 0;
  uint32_t units = 0;
  for (int i = 0; i < Form::kGroupUnits * unit; ++i) {
    if ((marks >> i & 1) == 0) continue;
    kept |= LowMask(bits) << i * bits;
    units |= uint32_t{1} << i / unit;
  }
  const GroupPlace place = PlaceOf<Form>(job, row, group);
  const uint64_t word = LoadFew(place.place, place.bytes);
  StoreBytes(place.place, word & (kept | ~place.inside), place.bytes);
  return CountOf(units);
}

}  // namespace

std::optional<OverfullGroup> KeepMarked(const SparseLayout& layout, const std::byte* mask,
                                        std::byte* dense) {
  const SparseJob job = SparseJobOf(layout, dense, nullptr);
  const int64_t mask_line_bytes = layout.columns / 8 + (layout.columns % 8 != 0 ? 1 : 0);
  return WithGroupForm(layout, [&]<typename Form>(Form) -> std::optional<OverfullGroup> {
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t group = 0; group < layout.groups; ++group) {
        const uint32_t marks = MarksOf(layout, mask + row * mask_line_bytes, group);
        const int units = KeepMarkedElements<Form>(job, row, group, marks);
        if (units > Form::kKeptUnits) return OverfullGroup{row, group, units};
      }
    }
    return std::nullopt;
  });
}

}  // namespace gemmd
