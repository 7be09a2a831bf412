// SPDX-License-Identifier: Apache-2.0
#include "kernels/supports.h"

#include <string>

#include "kernels/mma/support.h"
#include "kernels/sparse24.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

absl::Status Refuse(std::string_view field, std::string_view got, std::string_view want) {
  return absl::UnimplementedError(GotWant(field, got, want));
}

int Precision(ElementType accumulation) {
  switch (accumulation) {
    case ElementType::kF16: return 1;
    case ElementType::kF32: return 2;
    default: return 3;  // f64, and s32, which only integer rows have.
  }
}

// The portable form of fp4 keeps pairs, but instructions that take fp4 in bytes keep single
// elements.
absl::Status SupportsSparsity(const mma::Instruction& instruction, const Problem& problem) {
  if (!instruction.is_sparse()) {
    if (!problem.a.is_sparse()) return absl::OkStatus();
    return Refuse("a.sparsity", "2:4", "a dense A");
  }
  const std::string_view want = mma::NameOf(mma::SparsityOf(instruction));
  if (!problem.a.is_sparse()) return Refuse("a.sparsity", "none", want);
  const std::string_view got = SparseFormOf(instruction.a)->name();
  return got == want ? absl::OkStatus() : Refuse("a.sparsity", got, want);
}

std::string_view FieldOfBlocks(const Problem& problem) {
  return problem.blocks_of_a() != nullptr ? "a.scale.blocks" : "b.scale.blocks";
}

// One factor of the instruction holds for scale_block() elements along k of one row or column, so
// blocks must be whole multiples of that; they may have any number of rows.
absl::Status FitsInstruction(std::string_view field, const mma::Instruction& instruction,
                             const BlockScale* blocks) {
  if (blocks == nullptr) return absl::OkStatus();
  const mma::ScaleType type = instruction.scale;
  const bool is_type = (type == mma::ScaleType::kUe8m0 && blocks->type == FactorType::kUe8m0) ||
                       (type == mma::ScaleType::kUe4m3 && blocks->type == FactorType::kUe4m3);
  if (!is_type) return Refuse(Concat(field, ".type"), NameOf(blocks->type), mma::NameOf(type));
  if (blocks->depth % instruction.scale_block() == 0) return absl::OkStatus();
  return Refuse(Concat(field, ".k_per_block"), Concat(blocks->depth),
                Concat("a multiple of ", instruction.scale_block()));
}

}  // namespace

absl::Status SupportsTypes(const Kernel& kernel, const Problem& problem) {
  if (problem.a.type != kernel.a) return Refuse("a.type", NameOf(problem.a.type), NameOf(kernel.a));
  if (problem.b.type != kernel.b) return Refuse("b.type", NameOf(problem.b.type), NameOf(kernel.b));
  if (problem.has_block_scales() && kernel.recipe.block_scaling == BlockScaling::kNone) {
    return Refuse(FieldOfBlocks(problem), "factors of blocks",
                  "none: this kernel cannot multiply by them");
  }
  const ElementType accumulation = kernel.recipe.accumulation;
  if (Precision(problem.accumulation) <= Precision(accumulation)) return absl::OkStatus();
  return Refuse("accumulation_type", NameOf(problem.accumulation),
                Concat(NameOf(accumulation), " or less precise"));
}

absl::Status SupportsInstruction(const Kernel& kernel, const Problem& problem) {
  const mma::Instruction& instruction = *kernel.instruction;
  RETURN_IF_ERROR(SupportsTypes(kernel, problem));
  RETURN_IF_ERROR(SupportsSparsity(instruction, problem));
  RETURN_IF_ERROR(FitsInstruction("a.scale.blocks", instruction, problem.blocks_of_a()));
  RETURN_IF_ERROR(FitsInstruction("b.scale.blocks", instruction, problem.blocks_of_b()));
  if (instruction.bit_count == mma::BitCount::kNone) return absl::OkStatus();
  const bool is_xor = instruction.bit_count == mma::BitCount::kXor;
  if (is_xor == (problem.bit_operation == BitOperation::kXor)) return absl::OkStatus();
  return Refuse("bit_operation", is_xor ? "AND" : "XOR", is_xor ? "XOR" : "AND");
}

absl::Status AvailableOn(const mma::Instruction& instruction, mma::Chip chip) {
  if (mma::SupportOn(instruction, chip) != mma::Support::kUnavailable) return absl::OkStatus();
  std::string chips;
  for (const mma::Chip other : mma::kAllChips) {
    if (mma::SupportOn(instruction, other) == mma::Support::kUnavailable) continue;
    AppendPart(chips, Concat(chips.empty() ? "" : ", ", mma::NameOf(other)));
  }
  return absl::FailedPreconditionError(GotWant("device", mma::NameOf(chip), chips));
}

}  // namespace gemmd
