// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rows.h"

#include <string>
#include <vector>

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/row_table.h"
#include "kernels/mma/text.h"
#include "kernels/status_macros.h"
#include "kernels/supports.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

using mma::Instruction;
using RowName = StaticText<128>;

absl::Status Available(const Kernel& kernel, const Target& target) {
  if (target.kind != DeviceKind::kCuda) {
    return absl::FailedPreconditionError(GotWant("device", NameOf(target.kind), "cuda:<number>"));
  }
  const mma::Chip chip = target.chip;
  RETURN_IF_ERROR(AvailableOn(*kernel.instruction, chip));
  if (!mma::HasAsyncCopies(chip)) {
    return absl::FailedPreconditionError(GotWant("device", mma::NameOf(chip), "sm_80 or later"));
  }
  if (RunsOn(*kernel.cuda_row, chip)) return absl::OkStatus();
  if (!HasRegistersOn(*kernel.cuda_row, chip)) {
    return absl::FailedPreconditionError(
        Concat("device: got ", mma::NameOf(chip),
               ", which makes other instructions of this one, want one that has it for so large a "
               "tile"));
  }
  return absl::FailedPreconditionError(
      Concat("device: got ", mma::NameOf(chip), " with ", mma::SharedBytesOf(chip),
             " bytes of shared memory for a block, want ", SharedBytes(*kernel.cuda_row)));
}

absl::StatusOr<int64_t> WorkspaceBytes(const Kernel& kernel, const Problem& problem) {
  ASSIGN_OR_RETURN(const CudaPlan plan, PlanOf(*kernel.cuda_row, problem));
  return plan.workspace_bytes;
}

absl::Status Launch(const Kernel& kernel, const GemmArgs&) {
  return absl::FailedPreconditionError(Concat(kernel.name, " runs on a GPU"));
}

constexpr KernelFamily kCudaFamily = {.available = Available,
                                      .supports = SupportsInstruction,
                                      .workspace_bytes = WorkspaceBytes,
                                      .launch = Launch};

// "mma.m16n8k16.f32.f16.f16.f32_192x256x64_w2x4_s4_c2"; a cluster of one block is not named.
RowName NameOfRow(const CudaRow& row) {
  const std::string cluster = row.cluster > 1 ? Concat("_c", int{row.cluster}) : "";
  return RowName(mma::NameOf(row.instruction).view(), "_", int{row.tile.m}, "x", int{row.tile.n},
                 "x", int{row.tile.k}, "_w", int{row.warps_m}, "x", int{row.warps_n}, "_s",
                 int{row.stages}, cluster);
}

struct Rows {
  std::vector<RowName> names;
  std::vector<std::string> engines;
  std::vector<std::string> descriptions;
  std::vector<Kernel> kernels;
};

Rows MakeRows() {
  Rows rows;
  rows.names.reserve(kCudaRows.size());  // Kernels point into these.
  rows.engines.reserve(kCudaRows.size());
  rows.descriptions.reserve(kCudaRows.size());
  for (const CudaRow& row : kCudaRows) {
    const Instruction& instruction = row.instruction;
    const bool is_half = instruction.c == ElementType::kF16;
    rows.kernels.push_back({
        .name = rows.names.emplace_back(NameOfRow(row)).view(),
        .device_kind = DeviceKind::kCuda,
        .provider = "gemmd",
        .engine = rows.engines.emplace_back(Concat("cuda.", mma::NameOf(instruction).view())),
        .how = rows.descriptions.emplace_back(Concat(
            "one accumulator an element, ", mma::NameOf(instruction).view(), " in ascending k")),
        .a = instruction.a,
        .b = instruction.b,
        .recipe = {.a_compute = instruction.a,
                   .b_compute = instruction.b,
                   .accumulation = is_half ? ElementType::kF16 : instruction.d,
                   .exact = IsInteger(instruction.a) && !instruction.saturates,
                   .flushes_subnormals = false},
        .deterministic = true,
        .batch_invariant = true,
        .family = &kCudaFamily,
        .cpu_row = nullptr,
        .instruction = &instruction,
        .cuda_row = &row,
    });
  }
  return rows;
}

}  // namespace

absl::Span<const Kernel> CudaKernels() {
  static const auto* const rows = new Rows(MakeRows());  // Never destroyed: kernels are forever.
  return rows->kernels;
}

}  // namespace gemmd
