// SPDX-License-Identifier: Apache-2.0
//
// The variants that a recording contains.
#pragma once

#include <string>
#include <vector>

#include "kernels/mma/chip.h"
#include "tests/vectors/replay.h"

namespace gemmd {

struct VariantSelection {
  std::string filter = "*";  // A shell pattern for the name.
  // Takes every n of wgmma; otherwise only the smallest, one of a few groups of columns, and the
  // largest.
  bool has_all_widths = false;
};

// "mma.sp.m16n8k16.f16.f16.f16.f16.sel1": the name of the file, with '_' for ':'.
std::string NameOf(const Variant& variant);

// Every instruction of the chip; a sparse one once with each of its selectors.
std::vector<Variant> VariantsOf(mma::Chip chip, const VariantSelection& selection);

}  // namespace gemmd
