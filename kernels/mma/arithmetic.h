// SPDX-License-Identifier: Apache-2.0
//
// How one instruction adds on one chip, as data: the specification that the simulator executes.
//
// A fused sum takes a block of products and one addend. Everything is aligned to M, the largest of
// these exponents: those of the non-zero products, that of the addend, and `floor`. Magnitudes are
// truncated (toward zero) to multiples of 2^(M - fraction_bits) and added exactly, and the sum is
// rounded once: toward zero if the sums are f32, to nearest even if they are f16. Products are
// neither rounded nor normalised, subnormals keep their exponent, and zeros are ignored. An
// instruction is a chain of such blocks; the result of each is the addend of the next.
//
// Sources: sm_90 was compared with recordings, bit for bit (tests/vectors). Other chips: Khattak
// and Mikaitis, "Accurate models of NVIDIA tensor cores"; MMA-Sim (arXiv 2511.10909); Fasi et al.,
// "Numerical behavior of NVIDIA tensor cores" (2021); and what ptxas 13.0 emits.
#pragma once

#include <cstdint>

#include "kernels/mma/chip.h"
#include "kernels/mma/element_type.h"
#include "kernels/mma/instruction.h"

namespace gemmd::mma {

enum class Algorithm : uint8_t {
  kFusedSums,         // A chain of fused sums that starts from C.
  kFusedHalvesThenC,  // Two fused sums that start from zero; then C is added, rounded once more.
  kScaledGroups,      // A fused sum of exact sums of groups, each times its factors.
  kMultiplyAdds,      // m8n8k4 without a tensor core: IEEE f32, see FmaOrder.
  kMultiplyAddsF64,   // fma(a, b, sum) in ascending k, from C, in the instruction's rounding.
  kIntegers,          // Exact; modulo 2^32 or saturated once.
  kBitCounts,         // Exact, modulo 2^32.
};

// Which block of a chain a product belongs to.
enum class BlockOrder : uint8_t {
  kAscending,     // By its place among the products, `block` at a time.
  kSecondBitOfK,  // (k & 2) == 0 first: how ptxas unpacks dense fp8.
  kThirdBitOfK,   // (k & 4) == 0 first: sparse fp8.
};

struct Arithmetic {
  Algorithm algorithm = Algorithm::kFusedSums;
  BlockOrder order = BlockOrder::kAscending;
  int16_t block = 0;           // Products of one fused sum.
  int16_t fraction_bits = 0;   // Kept below the aligning exponent.
  int16_t floor = 0;           // Least aligning exponent.
  int16_t stored_bits = 0;     // Fraction bits of an f32 sum that are kept.
  bool widens_to_f16 = false;  // Operands become f16 first, exactly and normalised.
  // The format of the sums: C is first converted to it, exactly, and D is rounded from it.
  ElementType sum = ElementType::kF32;

  constexpr bool operator==(const Arithmetic&) const = default;
};

constexpr bool IsFused(const Arithmetic& arithmetic) {
  return arithmetic.algorithm == Algorithm::kFusedSums ||
         arithmetic.algorithm == Algorithm::kFusedHalvesThenC;
}

namespace model {

inline constexpr int kF32Bits = 23;
inline constexpr int kF16Bits = 10;
inline constexpr int kFp8SumBits = 13;  // The fp8 sums of Ada's and Hopper's tensor cores.

// Least aligning exponents: the least exponent of the sum less the integer bits of the adder.
struct Floors {
  int f32;
  int f16;
};

constexpr Floors FloorsOf(Chip chip) {
  const int capability = CapabilityOf(chip);
  if (capability >= 90) return {-133, -21};
  return capability >= 75 ? Floors{-132, -20} : Floors{-131, -19};
}

constexpr int FractionBitsOf(Chip chip) {
  const int capability = CapabilityOf(chip);
  if (capability >= 90) return 25;
  return capability >= 75 ? 24 : 23;
}

// The max number of products that the tensor core sums at once in 16-bit types and tf32.
constexpr int WidestBlock(Chip chip, ElementType operand) {
  const int capability = CapabilityOf(chip);
  const int wide = capability >= 90 ? 16 : capability >= 75 ? 8 : 4;
  return operand == ElementType::kTf32 ? wide / 2 : wide;
}

constexpr int Least(int a, int b) { return a < b ? a : b; }

constexpr Arithmetic FusedSums(const Instruction& instruction, Chip chip, ElementType sum) {
  const Floors floors = FloorsOf(chip);
  Arithmetic arithmetic;
  arithmetic.sum = sum;
  arithmetic.fraction_bits = static_cast<int16_t>(FractionBitsOf(chip));
  arithmetic.floor = static_cast<int16_t>(sum == ElementType::kF16 ? floors.f16 : floors.f32);
  arithmetic.stored_bits = sum == ElementType::kF16 ? kF16Bits : kF32Bits;
  int block = Least(instruction.a_columns(), WidestBlock(chip, instruction.a));
  // wmma with tf32 is made of products of depth 4.
  if (instruction.family == Family::kWmma && instruction.a == ElementType::kTf32) block = 4;
  arithmetic.block = static_cast<int16_t>(block);
  return arithmetic;
}

// The arithmetic of fp8 and narrower floats.
constexpr Arithmetic NarrowFloats(const Instruction& instruction, Chip chip, ElementType sum) {
  Arithmetic arithmetic = FusedSums(instruction, chip, sum);
  const int products = instruction.a_columns();
  if (SupportOn(instruction, chip) == Support::kEmulated) {
    arithmetic.algorithm = Algorithm::kFusedHalvesThenC;
    arithmetic.order =
        instruction.is_sparse() ? BlockOrder::kThirdBitOfK : BlockOrder::kSecondBitOfK;
    arithmetic.block = static_cast<int16_t>(products / 2);
    arithmetic.widens_to_f16 = true;
    return arithmetic;
  }
  if (instruction.kind == Kind::kMxf4 || instruction.kind == Kind::kMxf4nvf4) {
    arithmetic.algorithm = Algorithm::kScaledGroups;
    arithmetic.block = static_cast<int16_t>(products);
    arithmetic.fraction_bits = 35;
    return arithmetic;
  }
  const bool has_narrow_adder = chip == Chip::kSm89 || chip == Chip::kSm90;
  arithmetic.block = static_cast<int16_t>(Least(products, chip == Chip::kSm89 ? 16 : 32));
  if (has_narrow_adder) {
    arithmetic.fraction_bits = kFp8SumBits;
    if (sum == ElementType::kF32) arithmetic.stored_bits = kFp8SumBits;
  }
  return arithmetic;
}

}  // namespace model

// The arithmetic of an instruction that the chip has.
constexpr Arithmetic ArithmeticOf(const Instruction& instruction, Chip chip) {
  Arithmetic arithmetic;
  if (instruction.bit_count != BitCount::kNone) {
    arithmetic.algorithm = Algorithm::kBitCounts;
    arithmetic.sum = ElementType::kS32;
    return arithmetic;
  }
  if (IsInteger(instruction.a)) {
    arithmetic.algorithm = Algorithm::kIntegers;
    arithmetic.sum = ElementType::kS32;
    return arithmetic;
  }
  if (instruction.a == ElementType::kF64) {
    arithmetic.algorithm = Algorithm::kMultiplyAddsF64;
    arithmetic.sum = ElementType::kF64;
    return arithmetic;
  }
  if (instruction.products() == 4 && SupportOn(instruction, chip) == Support::kEmulated) {
    arithmetic.algorithm = Algorithm::kMultiplyAdds;
    arithmetic.sum = instruction.d;
    return arithmetic;
  }
  // Sums are f32 if C or D is; the other one is converted, after the rounding of the sum.
  const bool is_half = instruction.c == ElementType::kF16 && instruction.d == ElementType::kF16;
  const ElementType sum = is_half ? ElementType::kF16 : ElementType::kF32;
  return BitsOf(instruction.a) <= 8 ? model::NarrowFloats(instruction, chip, sum)
                                    : model::FusedSums(instruction, chip, sum);
}

// The block of the chain that a product belongs to: `place` counts the instruction's products
// (sparse: the kept elements), `k` is the product's logical place along k.
constexpr int BlockOf(const Arithmetic& arithmetic, int place, int k) {
  switch (arithmetic.order) {
    case BlockOrder::kAscending: return place / arithmetic.block;
    case BlockOrder::kSecondBitOfK: return k / 2 % 2;
    case BlockOrder::kThirdBitOfK: return k / 4 % 2;
  }
  return 0;
}

}  // namespace gemmd::mma
