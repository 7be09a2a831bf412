// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/rows.h"

#include <memory>
#include <vector>

#include "kernels/epilogue.h"
#include "kernels/kernel.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/split_float.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/arithmetic.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"
#include "kernels/promotion.h"
#include "kernels/sim/prediction.h"
#include "kernels/sim/product.h"

namespace gemmd {
namespace {

using mma::Instruction;

absl::Status Available(const Kernel& kernel, const Target& target) {
  if (target.kind != DeviceKind::kSim) {
    return absl::FailedPreconditionError(GotWant("device", NameOf(target.kind), "sim:<chip>"));
  }
  return AvailableOn(*kernel.instruction, target.chip);
}

// The layout of one matrix's accumulators, in D's order.
absl::StatusOr<MatrixLayout> AccumulatorLayout(const Kernel& kernel, const Problem& problem) {
  const ElementType d = kernel.instruction->d;
  absl::StatusOr<MatrixLayout> layout =
      TightLayout("workspace", d == ElementType::kF16 ? ElementType::kF32 : d, problem.d.order,
                  problem.m, problem.n);
  if (!layout.ok()) return absl::ResourceExhaustedError(layout.status().message());
  return layout;
}

absl::StatusOr<int64_t> WorkspaceBytes(const Kernel& kernel, const Problem& problem) {
  if (!problem.has_output() || !problem.has_product()) return 0;
  ASSIGN_OR_RETURN(const MatrixLayout layout, AccumulatorLayout(kernel, problem));
  if (!kernel.recipe.splits_f32) return layout.batch_stride_bytes;
  const std::optional<int64_t> all =
      (Checked(layout.batch_stride_bytes) + sim::SplitBytes(problem)).value();
  if (!all) return absl::ResourceExhaustedError("workspace: more than 2^63 bytes");
  return *all;
}

// The factors of one matrix of the batch.
const std::byte* FactorsOf(const std::byte* factors, const BlockScale* blocks, int64_t extent,
                           int64_t k, int64_t index) {
  return blocks == nullptr ? nullptr : factors + index * blocks->matrix_bytes(extent, k);
}

absl::Status Run(const Kernel& kernel, const GemmArgs& args, const MatrixLayout& layout) {
  const Problem& problem = args.problem;
  const mma::Chip chip = args.target.chip;
  const sim::Path path = sim::BestPath(*kernel.instruction, chip);
  Accumulators accumulators;
  accumulators.stored = layout.type;
  accumulators.type = layout.type;
  accumulators.leading_dimension = layout.leading_dimension;
  for (int64_t index = 0; index < problem.batch; ++index) {
    if (IsAborted(args)) return AbortedLaunch();
    if (problem.has_product()) {
      accumulators.data = args.workspace.data();
      const sim::Product2D product = {.instruction = *kernel.instruction,
                                      .chip = chip,
                                      .problem = problem,
                                      .a = args.a + index * problem.a.batch_stride_bytes,
                                      .b = args.b + index * problem.b.batch_stride_bytes,
                                      .a_factors = FactorsOf(args.a_factors, problem.blocks_of_a(),
                                                             problem.m, problem.k, index),
                                      .b_factors = FactorsOf(args.b_factors, problem.blocks_of_b(),
                                                             problem.n, problem.k, index),
                                      .abort = args.abort,
                                      .promotion_k = kernel.recipe.promotion_k};
      const sim::AccumulatorMatrix sums = {.data = args.workspace.data(),
                                           .type = layout.type,
                                           .order = problem.d.order,
                                           .leading_dimension = layout.leading_dimension};
      if (kernel.recipe.splits_f32) {
        sim::MultiplySplit(path, product, sums, args.workspace.data() + layout.batch_stride_bytes);
      } else {
        sim::Multiply(path, product, sums);
      }
    }
    ApplyEpilogue(args, index, accumulators);
  }
  return IsAborted(args) ? AbortedLaunch() : absl::OkStatus();
}

absl::Status Launch(const Kernel& kernel, const GemmArgs& args) {
  if (!args.problem.has_output()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const MatrixLayout layout, AccumulatorLayout(kernel, args.problem));
  return OrNoMemory(
      "workspace: no memory for the packed operands, some 40 MiB and one tile for each thread",
      [&] { return Run(kernel, args, layout); });
}

const KernelFamily kSimFamily = {.available = Available,
                                 .supports = SupportsInstruction,
                                 .workspace_bytes = WorkspaceBytes,
                                 .launch = Launch,
                                 .predicted_seconds = sim::PredictedSeconds};

using mma::Instruction;

// The engine whose measured rate predicts a row.
std::string_view EngineOf(const Instruction& instruction) {
  if (instruction.bit_count != mma::BitCount::kNone) return "sim.bits";
  if (IsInteger(instruction.a)) {
    return instruction.is_sparse() ? "sim.integers.sparse" : "sim.integers";
  }
  if (instruction.a == ElementType::kF64) return "sim.f64";
  if (instruction.products() > 1) return "sim.quads";  // Multiply-adds on all chips except sm_70.
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

// How a row uses its instruction.
struct Use {
  int promotion_k = 0;      // Recipe::promotion_k.
  bool splits_f32 = false;  // Recipe::splits_f32.
};

std::string_view DescriptionOf(const Instruction& instruction, const Use& use) {
  if (use.splits_f32) return "each f32 as two f16: the instruction's own sums of three products";
  if (use.promotion_k == 0) return DescriptionOf(instruction);
  return ScalesPromotedSums(instruction, use.promotion_k)
             ? "the instruction's own sums of 128 of k, times the factors of their blocks if there "
               "are any, added in f32 in ascending k"
             : "the instruction's own sums of 128 of k, added in f32 in ascending k";
}

BlockScaling BlockScalingOf(const Instruction& instruction, const Use& use) {
  if (instruction.scales > 0) return BlockScaling::kInstruction;
  return ScalesPromotedSums(instruction, use.promotion_k) ? BlockScaling::kPromotions
                                                          : BlockScaling::kNone;
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
                 .block_scaling = BlockScalingOf(instruction, use),
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
  static const auto* const rows =
      new Rows(MakeRows());  // Never destroyed: kernels live until the process ends.
  return rows->kernels;
}

}  // namespace gemmd
