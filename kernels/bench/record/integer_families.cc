// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>

#include "kernels/bench/record/families.h"

namespace gemmd {
namespace {

constexpr int64_t kMin = std::numeric_limits<int32_t>::min();
constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();

enum class End : uint8_t { kLow, kHigh };

uint64_t MaskOf(ElementType type) { return (uint64_t{1} << BitsOf(type)) - 1; }

// The smallest or the largest element.
uint64_t Extreme(ElementType type, End end) {
  const uint64_t sign = FactsOf(type).is_signed ? uint64_t{1} << (BitsOf(type) - 1) : 0;
  return end == End::kLow ? sign : MaskOf(type) & ~sign;
}

uint64_t S32(int64_t value) { return static_cast<uint32_t>(value); }

// Within 4096 of a limit, far enough for any sum to cross it.
uint64_t NearLimit(End end, RandomNumbers& random) {
  const int64_t distance = random.Between(0, 4096);
  return S32(end == End::kLow ? kMin + distance : kLargest - distance);
}

End EitherEnd(RandomNumbers& random) { return random.Flip() ? End::kLow : End::kHigh; }

void FillRandom(OperandFiller& filler) {
  const mma::Instruction& instruction = filler.instruction();
  RandomNumbers& random = filler.random();
  filler.FillA([&](int, int) { return random.Bits() & MaskOf(instruction.a); });
  filler.FillB([&](int, int) { return random.Bits() & MaskOf(instruction.b); });
}

void FillOrdinaryIntegers(int number, OperandFiller& filler) {
  RandomNumbers& random = filler.random();
  FillRandom(filler);
  filler.FillC([&](int, int) {
    switch (number % 3) {
      case 0: return random.Bits() & MaskOf(ElementType::kS32);
      case 1: return S32(random.Between(-1000, 1000));
      default: return NearLimit(EitherEnd(random), random);
    }
  });
}

// Families of even number use extremes of one sign; those of odd number use any extremes, or (5)
// anything.
void FillDirectedIntegers(int number, OperandFiller& filler) {
  const mma::Instruction& instruction = filler.instruction();
  RandomNumbers& random = filler.random();
  if (number == 5) {
    FillRandom(filler);
  } else {
    const bool is_mixed = number % 2 == 1;
    const End a = number % 4 < 2 ? End::kHigh : End::kLow;
    const End b = number < 4 ? End::kHigh : End::kLow;
    filler.FillA(
        [&](int, int) { return Extreme(instruction.a, is_mixed ? EitherEnd(random) : a); });
    filler.FillB(
        [&](int, int) { return Extreme(instruction.b, is_mixed ? EitherEnd(random) : b); });
  }
  filler.FillC([&](int, int) { return NearLimit(EitherEnd(random), random); });
}

}  // namespace

void FillIntegers(OperandFamily family, OperandFiller& filler) {
  if (family.set == FamilySet::kOrdinary) {
    FillOrdinaryIntegers(family.number, filler);
  } else {
    FillDirectedIntegers(family.number, filler);
  }
}

}  // namespace gemmd
