// SPDX-License-Identifier: Apache-2.0
//
// The chips whose matrix instructions are known here, by compute capability.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace gemmd::mma {

enum class Chip : uint8_t { kSm70, kSm75, kSm80, kSm86, kSm89, kSm90, kSm100, kSm103, kSm120 };

struct ChipFacts {
  std::string_view name;          // "sm_90".
  int capability;                 // 90.
  std::string_view architecture;  // "Hopper".
  // Whether the arithmetic was compared with recordings of the chip, or follows publications.
  bool is_verified;
};

inline constexpr std::array<Chip, 9> kAllChips = {Chip::kSm70,  Chip::kSm75,  Chip::kSm80,
                                                  Chip::kSm86,  Chip::kSm89,  Chip::kSm90,
                                                  Chip::kSm100, Chip::kSm103, Chip::kSm120};

constexpr ChipFacts FactsOf(Chip chip) {
  switch (chip) {
    case Chip::kSm70: return {"sm_70", 70, "Volta", false};
    case Chip::kSm75: return {"sm_75", 75, "Turing", false};
    case Chip::kSm80: return {"sm_80", 80, "Ampere", false};
    case Chip::kSm86: return {"sm_86", 86, "Ampere", false};
    case Chip::kSm89: return {"sm_89", 89, "Ada", false};
    case Chip::kSm90: return {"sm_90", 90, "Hopper", true};
    case Chip::kSm100: return {"sm_100", 100, "Blackwell", false};
    case Chip::kSm103: return {"sm_103", 103, "Blackwell", false};
    case Chip::kSm120: return {"sm_120", 120, "Blackwell", false};
  }
  return {};
}

constexpr std::string_view NameOf(Chip chip) { return FactsOf(chip).name; }
constexpr int CapabilityOf(Chip chip) { return FactsOf(chip).capability; }

}  // namespace gemmd::mma
