// SPDX-License-Identifier: Apache-2.0
#include "tests/record/variants.h"

#include <fnmatch.h>

#include <algorithm>

#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"

namespace gemmd {

std::string NameOf(const Variant& variant) {
  std::string name(mma::NameOf(*variant.instruction).view());
  if (variant.instruction->is_sparse()) name += ".sel" + std::to_string(variant.selector);
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
}

std::vector<Variant> VariantsOf(mma::Chip chip, const VariantSelection& selection) {
  std::vector<Variant> variants;
  for (const mma::Instruction& instruction : mma::kInstructions) {
    if (mma::SupportOn(instruction, chip) == mma::Support::kUnavailable) continue;
    const bool is_usual_width = instruction.n == 8 || instruction.n == 32 || instruction.n == 256;
    if (instruction.is_warpgroup() && !is_usual_width && !selection.has_all_widths) continue;
    for (int selector = 0; selector < std::max(mma::SelectorCount(instruction), 1); ++selector) {
      const Variant variant = {&instruction, selector};
      if (fnmatch(selection.filter.c_str(), NameOf(variant).c_str(), 0) == 0) {
        variants.push_back(variant);
      }
    }
  }
  return variants;
}

}  // namespace gemmd
