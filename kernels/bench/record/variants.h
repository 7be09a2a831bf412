// SPDX-License-Identifier: Apache-2.0
//
// The variants of instructions: how their files are named, and which a recording contains.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/mma/chip.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

// What a file records: an instruction and, for a sparse one, the selector.
struct Variant {
  const mma::Instruction* instruction = nullptr;
  int selector = 0;
};

// From a file's name without ".bin": an instruction's name, after a sparse one ".sel" and a digit,
// where '_' may stand for ':'.
std::optional<Variant> FindVariant(std::string_view name);

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
