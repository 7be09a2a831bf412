// SPDX-License-Identifier: Apache-2.0
#include "kernels/default_recipe.h"

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/arithmetic.h"
#include "kernels/mma/chip.h"
#include "kernels/promotion.h"
#include "kernels/sim/rows.h"

namespace gemmd {
namespace {

using mma::Instruction;

using KernelsOfTypes = std::array<std::array<std::vector<const Kernel*>, kAllElementTypes.size()>,
                                  kAllElementTypes.size()>;

// The simulated kernels of a pair of types.
const std::vector<const Kernel*>& KernelsOf(ElementType a, ElementType b) {
  static const KernelsOfTypes* const all = [] {
    auto* const made = new KernelsOfTypes;  // Never destroyed.
    for (const Kernel& kernel : SimKernels()) {
      (*made)[static_cast<size_t>(kernel.a)][static_cast<size_t>(kernel.b)].push_back(&kernel);
    }
    return made;
  }();
  return (*all)[static_cast<size_t>(a)][static_cast<size_t>(b)];
}

// Whether f16 sums are faster than f32 sums: graphics chips add f32 at half the rate.
bool HasFasterHalfSums(mma::Chip chip) {
  switch (chip) {
    case mma::Chip::kSm75:
    case mma::Chip::kSm86:
    case mma::Chip::kSm89:
    case mma::Chip::kSm120: return true;
    default: return false;
  }
}

int RankOf(mma::Family family) {
  switch (family) {
    case mma::Family::kWgmma:
    case mma::Family::kWgmmaSparse: return 0;
    case mma::Family::kMma:
    case mma::Family::kMmaSparse: return 1;
    case mma::Family::kWmma: return 2;
  }
  return 2;
}

// The smallest key is preferred.
auto KeyOf(const Kernel& kernel, const Problem& problem, mma::Chip chip) {
  const Instruction& instruction = *kernel.instruction;
  const bool is_emulated = mma::SupportOn(instruction, chip) != mma::Support::kNative;
  const bool has_unused_factors = instruction.scales > 0 && !problem.has_block_scales();
  const bool wants_half = problem.accumulation == ElementType::kF16 && HasFasterHalfSums(chip);
  const bool is_half = kernel.recipe.accumulation == ElementType::kF16;
  const bool promotes = kernel.recipe.promotion_k > 0;
  const bool wants_promotion = NeedsPromotion(instruction, chip) && !problem.fast_accumulation;
  return std::tuple(is_emulated, RankOf(instruction.family), has_unused_factors,
                    is_half != wants_half, instruction.saturates, instruction.c != instruction.d,
                    instruction.rounding != mma::Rounding::kNearestEven,
                    promotes != wants_promotion, -instruction.k);
}

// Between instructions, D is rounded to become C, and saturating sums are clamped.
bool HasChain(const Instruction& instruction) {
  return instruction.c == instruction.d && !instruction.saturates &&
         instruction.scale == mma::ScaleType::kNone;
}

std::string DescribeSums(const mma::Arithmetic& arithmetic) {
  switch (arithmetic.algorithm) {
    case mma::Algorithm::kFusedSums:
    case mma::Algorithm::kFusedHalvesThenC:
      return Concat(
          "sums of ", int{arithmetic.block}, " products, ", int{arithmetic.fraction_bits},
          " fraction bits, rounded ",
          arithmetic.sum == ElementType::kF16 ? "to nearest even to f16" : "toward zero to f32",
          arithmetic.algorithm == mma::Algorithm::kFusedHalvesThenC
              ? ", two of them before the accumulator is added"
              : "");
    case mma::Algorithm::kScaledGroups:
      return Concat("sums of ", int{arithmetic.block}, " products with their factors, ",
                    int{arithmetic.fraction_bits}, " fraction bits, rounded toward zero to f32");
    case mma::Algorithm::kMultiplyAdds: return "multiply-adds in f32";
    case mma::Algorithm::kMultiplyAddsF64: return "fused multiply-adds in f64";
    case mma::Algorithm::kIntegers: return "exact integers";
    case mma::Algorithm::kBitCounts: return "exact counts of bits";
  }
  return "";
}

}  // namespace

const Kernel* DefaultRecipe(mma::Chip chip, const Problem& problem) {
  const Target target = {.kind = DeviceKind::kSim, .chip = chip};
  const Kernel* best = nullptr;
  decltype(KeyOf(*best, problem, chip)) best_key;
  const auto consider = [&](const std::vector<const Kernel*>& kernels) {
    for (const Kernel* const kernel : kernels) {
      const auto key = KeyOf(*kernel, problem, chip);
      if (best != nullptr && key >= best_key) continue;
      if (!kernel->available(target).ok() || !kernel->supports(problem).ok()) continue;
      best = kernel;
      best_key = key;
    }
  };
  consider(KernelsOf(problem.a.type, problem.b.type));
  if (best != nullptr) return best;
  if (const std::optional<ElementType> type = DequantizedType(problem)) {
    consider(KernelsOf(*type, *type));
  }
  return best;
}

bool GiveSameBits(const Kernel& x, const Kernel& y, mma::Chip chip) {
  if (&x == &y || ShareInstruction(x, y)) return true;
  if (x.instruction == nullptr || y.instruction == nullptr) return false;
  const bool is_like =
      x.a == y.a && x.b == y.b && x.recipe == y.recipe && x.batch_invariant && y.batch_invariant;
  const Instruction& one = *x.instruction;
  const Instruction& other = *y.instruction;
  if (!is_like || !HasChain(one) || !HasChain(other)) return false;
  if (one.c != other.c || one.bit_count != other.bit_count) return false;
  if (one.is_sparse() != other.is_sparse()) return false;
  const mma::Arithmetic arithmetic = mma::ArithmeticOf(one, chip);
  const bool is_chain = arithmetic.algorithm == mma::Algorithm::kFusedSums ||
                        arithmetic.algorithm == mma::Algorithm::kIntegers ||
                        arithmetic.algorithm == mma::Algorithm::kBitCounts;
  return is_chain && arithmetic == mma::ArithmeticOf(other, chip);
}

const Kernel* SimulatedKernel(const Kernel& kernel) {
  if (kernel.instruction == nullptr) return nullptr;
  if (kernel.device_kind == DeviceKind::kSim) return &kernel;
  for (const Kernel& simulated : SimKernels()) {
    if (ShareInstruction(kernel, simulated)) return &simulated;
  }
  return nullptr;
}

std::string DescribeRecipe(const Kernel& kernel, mma::Chip chip) {
  if (kernel.instruction == nullptr) return std::string(kernel.how);
  const Instruction& instruction = *kernel.instruction;
  const mma::Arithmetic arithmetic = mma::ArithmeticOf(instruction, chip);
  const int promotion_k = kernel.recipe.promotion_k;
  return Concat(
      kernel.recipe.splits_f32 ? "each f32 as two f16, three products of these: " : "",
      DescribeSums(arithmetic), instruction.saturates ? ", clamped after every instruction" : "",
      kernel.recipe.block_scaling == BlockScaling::kPromotions
          ? ", times the factors of their blocks if there are any"
          : "",
      promotion_k > 0 ? Concat(", added to a total in f32 every ", promotion_k, " of k") : "",
      "; in ascending k, not split",
      kernel.recipe.splits_f32 ? "; in f64 where two f16 hold too little of an f32" : "");
}

}  // namespace gemmd
