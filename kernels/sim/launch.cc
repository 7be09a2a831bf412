// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/launch.h"

#include "kernels/checked.h"
#include "kernels/epilogue.h"
#include "kernels/mma/instructions.h"
#include "kernels/mma/support.h"
#include "kernels/or_no_memory.h"
#include "kernels/sim/prediction.h"
#include "kernels/sim/product.h"
#include "kernels/sim/split_product.h"
#include "kernels/status_macros.h"
#include "kernels/supports.h"
#include "kernels/text.h"

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

}  // namespace

const KernelFamily kSimFamily = {.available = Available,
                                 .supports = SupportsInstruction,
                                 .workspace_bytes = WorkspaceBytes,
                                 .launch = Launch,
                                 .predicted_seconds = sim::PredictedSeconds};

}  // namespace gemmd
