// SPDX-License-Identifier: Apache-2.0
//
// Instructions by name, chips by name and compute capability.
#pragma once

#include <optional>
#include <string_view>

#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"

namespace gemmd::mma {

constexpr std::optional<Chip> ChipFromName(std::string_view name) {
  for (const Chip chip : kAllChips) {
    if (NameOf(chip) == name) return chip;
  }
  return std::nullopt;
}

// The chip of a compute capability, 90 for 9.0.
constexpr std::optional<Chip> ChipFromCapability(int capability) {
  for (const Chip chip : kAllChips) {
    if (CapabilityOf(chip) == capability) return chip;
  }
  return std::nullopt;
}

// Null if there is none of that name.
constexpr const Instruction* FindInstruction(std::string_view name) {
  for (const Instruction& instruction : kInstructions) {
    if (NameOf(instruction).view() == name) return &instruction;
  }
  return nullptr;
}

}  // namespace gemmd::mma
