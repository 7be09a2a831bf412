// SPDX-License-Identifier: Apache-2.0
//
// The chips whose matrix instructions are known here, by compute capability.
//
// Source: CUDA C++ Programming Guide 13.0, technical specifications per compute capability.
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
  // Whether the arithmetic was compared with recordings of the chip; otherwise it follows
  // publications.
  bool is_verified;
  int shared_kib;  // Shared memory that a block of threads can have at most.
};

inline constexpr std::array<Chip, 9> kAllChips = {Chip::kSm70,  Chip::kSm75,  Chip::kSm80,
                                                  Chip::kSm86,  Chip::kSm89,  Chip::kSm90,
                                                  Chip::kSm100, Chip::kSm103, Chip::kSm120};

constexpr ChipFacts FactsOf(Chip chip) {
  switch (chip) {
    case Chip::kSm70: return {"sm_70", 70, "Volta", false, 96};
    case Chip::kSm75: return {"sm_75", 75, "Turing", false, 64};
    case Chip::kSm80: return {"sm_80", 80, "Ampere", false, 163};
    case Chip::kSm86: return {"sm_86", 86, "Ampere", false, 99};
    case Chip::kSm89: return {"sm_89", 89, "Ada", false, 99};
    case Chip::kSm90: return {"sm_90", 90, "Hopper", true, 227};
    case Chip::kSm100: return {"sm_100", 100, "Blackwell", false, 227};
    case Chip::kSm103: return {"sm_103", 103, "Blackwell", false, 227};
    case Chip::kSm120: return {"sm_120", 120, "Blackwell", false, 99};
  }
  return {};
}

constexpr std::string_view NameOf(Chip chip) { return FactsOf(chip).name; }
constexpr int CapabilityOf(Chip chip) { return FactsOf(chip).capability; }
constexpr int SharedBytesOf(Chip chip) { return FactsOf(chip).shared_kib * 1024; }

// Whether threads copy to shared memory without waiting (cp.async).
constexpr bool HasAsyncCopies(Chip chip) { return CapabilityOf(chip) >= 80; }
// Whether a separate engine copies whole tiles.
constexpr bool HasTileCopies(Chip chip) { return CapabilityOf(chip) >= 90; }
// Whether the engine writes a tile to several blocks of a cluster at once.
constexpr bool HasMulticast(Chip chip) { return HasTileCopies(chip) && CapabilityOf(chip) < 120; }
// Whether a kernel can begin before the one ahead of it in its stream has ended, and wait for it
// itself.
constexpr bool HasEarlyLaunches(Chip chip) { return CapabilityOf(chip) >= 90; }

}  // namespace gemmd::mma
