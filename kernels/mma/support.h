// SPDX-License-Identifier: Apache-2.0
//
// Which chip has an instruction, and what of it is hardware.
//
// Source: the code that ptxas 13.0 emits (12.4 for sm_70); tests/kernels/mma/ptxas_test.py checks
// it again.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/mma/chip.h"
#include "kernels/mma/instruction.h"

namespace gemmd::mma {

// How a chip executes an instruction of PTX.
enum class Support : uint8_t {
  kUnavailable,  // ptxas refuses it.
  kEmulated,     // ptxas expands it into other instructions.
  kNative,       // Instructions of the tensor core alone.
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
