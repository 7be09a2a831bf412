// SPDX-License-Identifier: Apache-2.0
#include "kernels/bad_group.h"

#include "kernels/sparse_refusal.h"

namespace gemmd {
namespace {

struct Fault {
  int64_t row;
  int64_t group;
  uint32_t detail;
};

Fault FaultOf(const SparseLayout& layout, BadGroup bad) {
  const auto position = static_cast<int64_t>(bad >> 8);
  return {position / layout.groups, position % layout.groups, static_cast<uint32_t>(bad & 0xff)};
}

}  // namespace

absl::Status PrunedRefusal(std::string_view field, const SparseLayout& layout, BadGroup bad) {
  if (bad == kNoBadGroup) return absl::OkStatus();
  const Fault fault = FaultOf(layout, bad);
  return RefuseNonzeros(field, layout, fault.row, fault.group, static_cast<int>(fault.detail));
}

absl::Status CompressedRefusal(std::string_view field, const SparseLayout& layout, BadGroup bad) {
  if (bad == kNoBadGroup) return absl::OkStatus();
  const Fault fault = FaultOf(layout, bad);
  if ((fault.detail & kIsBeyond) != 0) {
    const int64_t in_group = fault.detail & ~kIsBeyond;
    return RefuseBeyond(field, layout, fault.row, fault.group * layout.form.group() + in_group);
  }
  const uint64_t first = fault.detail & 3;
  const uint64_t second = fault.detail >> 2 & 3;
  const uint64_t last = layout.form.kept_units() == 1 ? first : second;
  return RefuseIndices(field, layout, fault.row, fault.group, {first, last});
}

}  // namespace gemmd
