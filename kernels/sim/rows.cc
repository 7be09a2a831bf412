// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/rows.h"

#include <memory>
#include <vector>

#include "kernels/mma/arithmetic.h"
#include "kernels/mma/instructions.h"
#include "kernels/promotion.h"
#include "kernels/sim/launch.h"
#include "kernels/split_float.h"

namespace gemmd {
namespace {

using mma::Instruction;

// The engine whose measured rate predicts a row.
std::string_view EngineOf(const Instruction& instruction) {
  if (instruction.bit_count != mma::BitCount::kNone) return "sim.bits";
  if (IsInteger(instruction.a)) {
    return instruction.is_sparse() ? "sim.integers.sparse" : "sim.integers";
  }
  if (instruction.a == ElementType::kF64) return "sim.f64";
  if (instruction.products() > 1) return "sim.quads";  // Multiply-adds on all chips but the first.
  if (instruction.scales > 0) return "sim.groups";
  const bool is_fp8 = BitsOf(instruction.a) <= 8;
  if (instruction.is_sparse()) return is_fp8 ? "sim.fused.sparse.fp8" : "sim.fused.sparse";
  return is_fp8 ? "sim.fused.fp8" : "sim.fused";
}

std::string_view DescriptionOf(const Instruction& instruction) {
  if (instruction.bit_count != mma::BitCount::kNone) {
    return "bits counted to the bit, modulo 2^32";
  }
  if (IsInteger(instruction.a)) {
    return instruction.saturates ? "exact integers, clamped after every instruction"
                                 : "exact integers, modulo 2^32";
  }
  if (instruction.scales > 0) {
    return "the instruction's own sums, in ascending k, with the factors of the blocks, or one";
  }
  if (instruction.a == ElementType::kF64) return "fused multiply-adds in ascending k";
  if (instruction.is_sparse()) {
    return "the instruction's own sums of the kept elements, in ascending k";
  }
  return "the instruction's own sums, in ascending k";
}

// The less precise of the types that hold sums between and after instructions.
ElementType AccumulationOf(const Instruction& instruction) {
  return instruction.c == ElementType::kF16 ? instruction.c : instruction.d;
}

struct Rows {
  std::vector<mma::InstructionName> names;
  std::vector<Kernel> kernels;
};

// What a row does with its instruction.
struct Use {
  int promotion_k = 0;      // Recipe::promotion_k.
  bool splits_f32 = false;  // Recipe::splits_f32.
};

std::string_view DescriptionOf(const Instruction& instruction, const Use& use) {
  if (use.splits_f32) return "each f32 as two f16: the instruction's own sums of three products";
  return use.promotion_k > 0 ? "the instruction's own sums of 128 of k, added in f32 in ascending k"
                             : DescriptionOf(instruction);
}

void AddRow(const Instruction& instruction, const Use& use, Rows& rows) {
  const int promotion_k = use.promotion_k;
  const ElementType a = use.splits_f32 ? ElementType::kF32 : instruction.a;
  const ElementType b = use.splits_f32 ? ElementType::kF32 : instruction.b;
  mma::InstructionName& name = rows.names.emplace_back(mma::NameOf(instruction));
  if (use.splits_f32) name.Append("_from_f32");
  if (promotion_k > 0) {
    name.Append("_p");
    name.Append(promotion_k);
  }
  rows.kernels.push_back({
      .name = name.view(),
      .device_kind = DeviceKind::kSim,
      .provider = "gemmd",
      .engine = EngineOf(instruction),
      .how = DescriptionOf(instruction, use),
      .a = a,
      .b = b,
      .recipe = {.a_compute = a,
                 .b_compute = b,
                 .accumulation = AccumulationOf(instruction),
                 .exact = IsInteger(instruction.a) && !instruction.saturates,
                 .flushes_subnormals = false,
                 .block_scaling =
                     instruction.scales > 0 ? BlockScaling::kInstruction : BlockScaling::kNone,
                 .promotion_k = promotion_k,
                 .splits_f32 = use.splits_f32},
      .deterministic = true,
      .batch_invariant = true,
      .family = &kSimFamily,
      .instruction = &instruction,
  });
}

Rows MakeRows() {
  Rows rows;
  rows.names.reserve(3 * mma::kInstructions.size());  // Kernels point into the vector.
  for (const Instruction& instruction : mma::kInstructions) AddRow(instruction, {}, rows);
  for (const Instruction& instruction : mma::kInstructions) {
    if (HasPromotedRows(instruction)) AddRow(instruction, {.promotion_k = kPromotionK}, rows);
  }
  for (const Instruction& instruction : mma::kInstructions) {
    if (!HasSplitRows(instruction)) continue;
    AddRow(instruction, {.promotion_k = kSplitPromotionK, .splits_f32 = true}, rows);
  }
  return rows;
}

}  // namespace

absl::Span<const Kernel> SimKernels() {
  static const auto* const rows = new Rows(MakeRows());  // Never destroyed: kernels are forever.
  return rows->kernels;
}

}  // namespace gemmd
