// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/record/variants.h"

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

std::optional<Variant> FindVariant(std::string_view name) {
  constexpr std::string_view kSelector = ".selN";
  Variant variant;
  std::string_view stem = name;
  const size_t dot = name.rfind(".sel");
  if (dot != std::string_view::npos && dot + kSelector.size() == name.size()) {
    variant.selector = name.back() - '0';
    stem = name.substr(0, dot);
  }
  const auto is_same = [](char got, char want) {
    return got == want || (got == '_' && want == ':');
  };
  for (const mma::Instruction& instruction : mma::kInstructions) {
    const mma::InstructionName text = mma::NameOf(instruction);
    const std::string_view known = text.view();
    if (!std::equal(stem.begin(), stem.end(), known.begin(), known.end(), is_same)) continue;
    const bool is_selected = stem.size() != name.size();
    if (is_selected && !instruction.is_sparse()) return std::nullopt;
    if (is_selected &&
        (variant.selector < 0 || variant.selector >= mma::SelectorCount(instruction))) {
      return std::nullopt;
    }
    variant.instruction = &instruction;
    return variant;
  }
  return std::nullopt;
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
