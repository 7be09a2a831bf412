// SPDX-License-Identifier: Apache-2.0
//
// The chips whose matrix instructions are known here, by compute capability, and which chip has
// which instruction.
//
// Sources: CUDA C++ Programming Guide 13.0, technical specifications per compute capability; for
// instructions, the code that ptxas 13.0 emits (12.4 for sm_70), which
// tests/kernels/mma/ptxas_test.py checks again.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/mma/instruction.h"

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

// Whether threads copy to shared memory without waiting (cp.async).
constexpr bool HasAsyncCopies(Chip chip) { return CapabilityOf(chip) >= 80; }
// Whether a separate engine copies whole tiles.
constexpr bool HasTileCopies(Chip chip) { return CapabilityOf(chip) >= 90; }
// Whether the engine writes a tile to several blocks of a cluster at once.
constexpr bool HasMulticast(Chip chip) { return HasTileCopies(chip) && CapabilityOf(chip) < 120; }
// Whether a kernel can begin before the previous kernel in its stream has ended, and wait for it.
constexpr bool HasEarlyLaunches(Chip chip) { return CapabilityOf(chip) >= 90; }

// How a chip executes an instruction of PTX.
enum class Support : uint8_t {
  kUnavailable,  // ptxas refuses it.
  kEmulated,     // ptxas expands it into other instructions.
  kNative,       // Executes as tensor-core instructions only.
};

constexpr std::string_view NameOf(Support support) {
  switch (support) {
    case Support::kUnavailable: return "unavailable";
    case Support::kEmulated: return "emulated";
    case Support::kNative: return "native";
  }
  return "";
}

constexpr Support SupportOn(const Instruction& instruction, Chip chip) {
  const int capability = CapabilityOf(chip);
  if (capability < instruction.min_target) return Support::kUnavailable;
  if (instruction.is_warpgroup()) {
    return chip == Chip::kSm90 ? Support::kNative : Support::kUnavailable;
  }
  const auto native_if = [](bool is_native) {
    return is_native ? Support::kNative : Support::kEmulated;
  };
  const bool is_fp8 = IsFloat(instruction.a) && BitsOf(instruction.a) == 8;
  if (is_fp8) return native_if(chip == Chip::kSm89 || chip == Chip::kSm120);
  if (instruction.products() == 4) return native_if(capability < 80);
  if (BitsOf(instruction.a) == 4 && IsInteger(instruction.a)) return native_if(capability < 90);
  if (instruction.bit_count != BitCount::kNone) {
    return native_if(capability < 90 ||
                     (chip == Chip::kSm90 && instruction.bit_count == BitCount::kAnd));
  }
  const bool is_split_f64 = instruction.a == ElementType::kF64 && instruction.m == 16;
  if (is_split_f64) return native_if(chip == Chip::kSm90);
  return Support::kNative;
}

// How ptxas lowers an instruction that the chip emulates; empty if the chip does not emulate it.
constexpr std::string_view LoweringOn(const Instruction& instruction, Chip chip) {
  if (SupportOn(instruction, chip) != Support::kEmulated) return "";
  if (instruction.products() == 4) return "multiply-adds in f32 with lane exchange";
  if (instruction.a == ElementType::kF64) return "m8n8k4 products in ascending k";
  if (instruction.bit_count != BitCount::kNone) {
    return chip == Chip::kSm90 ? "two and.popc products with one operand inverted each"
                               : "8-bit integer products of the bits";
  }
  if (IsInteger(instruction.a)) return "two 8-bit products of even and odd elements, added";
  if (instruction.d == ElementType::kF16) {
    return "operands widened to f16, two f16 products in turn, C added in f16";
  }
  return "operands widened to f16, two f16 products in turn, C added in f32";
}

}  // namespace gemmd::mma
