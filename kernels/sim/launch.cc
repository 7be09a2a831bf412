// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/launch.h"

#include <new>

#include "kernels/epilogue.h"
#include "kernels/mma/instructions.h"
#include "kernels/mma/support.h"
#include "kernels/sim/product.h"
#include "kernels/sparse24.h"
#include "kernels/status_macros.h"
#include "kernels/supports_types.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

using mma::Instruction;

absl::Status Refuse(std::string_view field, std::string_view got, std::string_view want) {
  return absl::UnimplementedError(GotWant(field, got, want));
}

absl::Status Available(const Kernel& kernel, const Target& target) {
  if (target.kind != DeviceKind::kSim) {
    return absl::FailedPreconditionError(GotWant("device", NameOf(target.kind), "sim:<chip>"));
  }
  if (mma::SupportOn(*kernel.instruction, target.chip) != mma::Support::kUnavailable) {
    return absl::OkStatus();
  }
  std::string chips;
  for (const mma::Chip chip : mma::kAllChips) {
    if (mma::SupportOn(*kernel.instruction, chip) == mma::Support::kUnavailable) continue;
    AppendPart(chips, Concat(chips.empty() ? "" : ", ", mma::NameOf(chip)));
  }
  return absl::FailedPreconditionError(GotWant("device", mma::NameOf(target.chip), chips));
}

// The portable form of fp4 keeps pairs; instructions that take fp4 in bytes keep single elements.
absl::Status SupportsSparsity(const Instruction& instruction, const Problem& problem) {
  if (!instruction.is_sparse()) {
    if (!problem.a.is_sparse()) return absl::OkStatus();
    return Refuse("a.sparsity", "2:4", "a dense A");
  }
  const std::string_view want = mma::NameOf(mma::SparsityOf(instruction));
  if (!problem.a.is_sparse()) return Refuse("a.sparsity", "none", want);
  const std::string_view got = SparseFormOf(instruction.a)->name();
  return got == want ? absl::OkStatus() : Refuse("a.sparsity", got, want);
}

absl::Status Supports(const Kernel& kernel, const Problem& problem) {
  const Instruction& instruction = *kernel.instruction;
  RETURN_IF_ERROR(SupportsTypes(kernel, problem));
  RETURN_IF_ERROR(SupportsSparsity(instruction, problem));
  if (instruction.bit_count == mma::BitCount::kNone) return absl::OkStatus();
  const bool is_xor = instruction.bit_count == mma::BitCount::kXor;
  if (is_xor == (problem.bit_operation == BitOperation::kXor)) return absl::OkStatus();
  return Refuse("bit_operation", is_xor ? "AND" : "XOR", is_xor ? "XOR" : "AND");
}

// The accumulators of one matrix, in D's order.
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
  return layout.batch_stride_bytes;
}

void Run(const Kernel& kernel, const GemmArgs& args, const MatrixLayout& layout) {
  const Problem& problem = args.problem;
  const mma::Chip chip = args.target.chip;
  const sim::Path path = sim::BestPath(*kernel.instruction, chip);
  Accumulators accumulators;
  accumulators.stored = layout.type;
  accumulators.type = layout.type;
  accumulators.leading_dimension = layout.leading_dimension;
  for (int64_t index = 0; index < problem.batch; ++index) {
    if (problem.has_product()) {
      accumulators.data = args.workspace.data();
      sim::Multiply(path,
                    {.instruction = *kernel.instruction,
                     .chip = chip,
                     .problem = problem,
                     .a = args.a + index * problem.a.batch_stride_bytes,
                     .b = args.b + index * problem.b.batch_stride_bytes},
                    {.data = args.workspace.data(),
                     .type = layout.type,
                     .order = problem.d.order,
                     .leading_dimension = layout.leading_dimension});
    }
    ApplyEpilogue(args, index, accumulators);
  }
}

absl::Status Launch(const Kernel& kernel, const GemmArgs& args) {
  if (!args.problem.has_output()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const MatrixLayout layout, AccumulatorLayout(kernel, args.problem));
  try {
    Run(kernel, args, layout);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "workspace: no memory for the packed operands, some 40 MiB and one tile for each thread");
  }
  return absl::OkStatus();
}

}  // namespace

const KernelFamily kSimFamily = {.available = Available,
                                 .supports = Supports,
                                 .workspace_bytes = WorkspaceBytes,
                                 .launch = Launch};

}  // namespace gemmd
