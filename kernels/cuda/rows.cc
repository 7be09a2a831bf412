// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rows.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/prediction.h"
#include "kernels/cuda/row_table.h"
#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/instruction.h"

namespace gemmd {
namespace {

using mma::Instruction;
using RowName = StaticText<128>;

const CudaRow& RowOf(const Kernel& kernel) { return *static_cast<const CudaRow*>(kernel.row); }

absl::Status Available(const Kernel& kernel, const Target& target) {
  if (target.kind != DeviceKind::kCuda) {
    return absl::FailedPreconditionError(GotWant("device", NameOf(target.kind), "cuda:<number>"));
  }
  const mma::Chip chip = target.chip;
  RETURN_IF_ERROR(AvailableOn(*kernel.instruction, chip));
  if (!mma::HasAsyncCopies(chip)) {
    return absl::FailedPreconditionError(GotWant("device", mma::NameOf(chip), "sm_80 or later"));
  }
  if (RunsOn(RowOf(kernel), chip)) return absl::OkStatus();
  if (!HasRegistersOn(RowOf(kernel), chip)) {
    return absl::FailedPreconditionError(
        Concat("device: got ", mma::NameOf(chip),
               ", which makes other instructions of this one, want one that has it for so large a "
               "tile"));
  }
  return absl::FailedPreconditionError(
      Concat("device: got ", mma::NameOf(chip), " with ", mma::SharedBytesOf(chip),
             " bytes of shared memory for a block, want ", SharedBytes(RowOf(kernel))));
}

absl::StatusOr<int64_t> WorkspaceBytes(const Kernel& kernel, const Problem& problem) {
  const Multiplication multiplied = MultiplicationOf(RowOf(kernel), problem);
  ASSIGN_OR_RETURN(const CudaPlan plan, PlanOf(multiplied.row, multiplied.problem));
  return plan.workspace_bytes;
}

absl::Status Launch(const Kernel& kernel, const GemmArgs&) {
  return absl::FailedPreconditionError(Concat(kernel.name, " runs on a GPU"));
}

double Predict(const Kernel& kernel, const Problem& problem, const DeviceProfile& profile,
               double rate) {
  const Multiplication multiplied = MultiplicationOf(RowOf(kernel), problem);
  return PredictedSeconds(multiplied.row, multiplied.problem, profile, rate);
}

absl::StatusOr<MatrixLayout> SampleOperand(const CudaRow& row, mma::Operand operand,
                                           ElementType type, int64_t rows, int64_t columns) {
  const bool is_a = operand == mma::Operand::kA;
  if (is_a && row.instruction.is_sparse()) return TightSparseLayout("a", type, rows, columns);
  const bool is_along_k = LineAxisOf(row.instruction, operand) == LineAxis::kK;
  return TightLayout(is_a ? "a" : "b", type,
                     is_a == is_along_k ? Order::kRowMajor : Order::kColumnMajor, rows, columns);
}

// The factor of `count` next to its square root from below.
int64_t NearestFactor(int64_t count) {
  auto factor = static_cast<int64_t>(std::sqrt(static_cast<double>(count)));
  while (count % factor != 0) --factor;
  return factor;
}

// The problem has one tile for each block that fits the multiprocessors, as square as possible so
// that operands come from the cache, operands that need no packing, and enough steps along k that
// start and end, about 5 us, hardly matter: on an H200 a tile of 64 x 64 alone takes 40 us, one of
// 128 x 256 110 us.
absl::StatusOr<Problem> Sample(const Kernel& kernel, const Target& target) {
  const CudaRow& row = RowOf(kernel);
  constexpr int64_t kDepthBits = 8 * 16384;
  const int64_t steps = kDepthBits / (row.tile.k * BitsOf(kernel.b));
  Problem problem;
  const int64_t tiles =
      int64_t{std::max(1, target.multiprocessors)} * BlocksPerMultiprocessor(row, target.chip);
  const int64_t tiles_down = NearestFactor(tiles);
  problem.m = row.tile.m * tiles_down;
  problem.n = row.tile.n * (tiles / tiles_down);
  problem.k = row.tile.k * steps;
  problem.accumulation = kernel.recipe.accumulation;
  if (row.instruction.bit_count == mma::BitCount::kXor) problem.bit_operation = BitOperation::kXor;
  ASSIGN_OR_RETURN(problem.a, SampleOperand(row, mma::Operand::kA, kernel.a, problem.m, problem.k));
  ASSIGN_OR_RETURN(problem.b, SampleOperand(row, mma::Operand::kB, kernel.b, problem.k, problem.n));
  ASSIGN_OR_RETURN(problem.d,
                   TightLayout("d", problem.accumulation, Order::kRowMajor, problem.m, problem.n));
  return problem;
}

// The data derived from a dense operand depend on whether it is A or B (k runs in different
// directions), on the layout of its elements and, if f32 are split, on whether the lines' ranges
// precede or follow them. The metadata of a sparse operand are specific to a row.
uint32_t FormOf(const Kernel& kernel, const CudaRow& row, mma::Operand operand) {
  constexpr uint32_t kOfRow = uint32_t{1} << 31;
  const mma::Instruction& instruction = row.instruction;
  const bool is_a = operand == mma::Operand::kA;
  if (is_a && instruction.is_sparse()) return kOfRow + static_cast<uint32_t>(kernel.position);
  const auto container = static_cast<uint32_t>(mma::ContainerBits(instruction, operand));
  const auto shift = static_cast<uint32_t>(mma::ContainerShift(instruction, operand));
  const uint32_t axis = LineAxisOf(row, operand) == LineAxis::kK ? 1 : 2;
  const uint32_t split = !row.splits_f32 ? 0 : is_a ? 1 : 2;
  return axis + 4 * split + 16 * shift + 256 * container;
}

absl::StatusOr<DerivedOperand> Derived(const Kernel& kernel, const Problem& problem,
                                       mma::Operand operand) {
  const Multiplication multiplied = MultiplicationOf(RowOf(kernel), problem);
  ASSIGN_OR_RETURN(const CudaPlan plan, PlanOf(multiplied.row, multiplied.problem));
  const bool is_first = (operand == mma::Operand::kA) != multiplied.is_transposed;
  const mma::Operand as = is_first ? mma::Operand::kA : mma::Operand::kB;
  constexpr uint32_t kOfB = uint32_t{1} << 30;
  const uint32_t form =
      FormOf(kernel, multiplied.row, as) | (operand == mma::Operand::kB ? kOfB : 0);
  if (is_first) return DerivedOperand{.bytes = plan.a_workspace_bytes, .form = form};
  return DerivedOperand{
      .offset = plan.b_workspace_offset(), .bytes = plan.b_workspace_bytes, .form = form};
}

constexpr KernelFamily kCudaFamily = {.available = Available,
                                      .supports = SupportsInstruction,
                                      .workspace_bytes = WorkspaceBytes,
                                      .launch = Launch,
                                      .predicted_seconds = Predict,
                                      .sample = Sample,
                                      .derived = Derived};

// "mma.m16n8k16.f32.f16.f16.f32_192x256x64_w2x4_s4_c2"; the name leaves out a cluster of one block.
RowName NameOfRow(const CudaRow& row) {
  const std::string cluster = row.cluster > 1   ? Concat("_c", int{row.cluster})
                              : TakesTurns(row) ? "_turns"
                                                : "";
  const std::string split = row.splits_f32 ? "_from_f32" : "";
  const std::string promotion = row.promotion_k > 0 ? Concat("_p", int{row.promotion_k}) : "";
  return RowName(mma::NameOf(row.instruction).view(), split, promotion, "_", int{row.tile.m}, "x",
                 int{row.tile.n}, "x", int{row.tile.k}, "_w", int{row.warps_m}, "x",
                 int{row.warps_n}, "_s", int{row.stages}, cluster);
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
    const ElementType a = row.splits_f32 ? ElementType::kF32 : instruction.a;
    const ElementType b = row.splits_f32 ? ElementType::kF32 : instruction.b;
    rows.kernels.push_back({
        .name = rows.names.emplace_back(NameOfRow(row)).view(),
        .device_kind = DeviceKind::kCuda,
        .provider = "gemmd",
        .engine = rows.engines.emplace_back(
            Concat("cuda.", mma::NameOf(instruction).view(), row.splits_f32 ? "_from_f32" : "")),
        .how = rows.descriptions.emplace_back(Concat(
            row.splits_f32 ? "each f32 as two f16, three products of these: " : "",
            "one accumulator an element, ", mma::NameOf(instruction).view(), " in ascending k",
            ScalesPromotedSums(instruction, row.promotion_k)
                ? ", times the factors of blocks if there are any"
                : "",
            row.promotion_k > 0
                ? Concat(", added to a total in f32 every ", int{row.promotion_k}, " of k")
                : "")),
        .a = a,
        .b = b,
        .recipe = {.a_compute = a,
                   .b_compute = b,
                   .accumulation = is_half ? ElementType::kF16 : instruction.d,
                   .exact = IsInteger(instruction.a) && !instruction.saturates,
                   .flushes_subnormals = false,
                   .block_scaling = ScalesPromotedSums(instruction, row.promotion_k)
                                        ? BlockScaling::kPromotions
                                        : BlockScaling::kNone,
                   .promotion_k = row.promotion_k,
                   .splits_f32 = row.splits_f32},
        .deterministic = true,
        .batch_invariant = true,
        .family = &kCudaFamily,
        .row = &row,
        .instruction = &instruction,
    });
  }
  return rows;
}

}  // namespace

const CudaRow* CudaRowOf(const Kernel& kernel) {
  return kernel.family == &kCudaFamily ? &RowOf(kernel) : nullptr;
}

std::optional<CudaRow> RowOfTranspose(CudaRow row) {
  row.across = Across::kNone;
  row.scales_sums = false;
  if (row.instruction.a == row.instruction.b) return row;
  std::swap(row.instruction.a, row.instruction.b);
  const bool is_known = std::find(kCudaRows.begin(), kCudaRows.end(), row) != kCudaRows.end();
  return is_known ? std::optional(row) : std::nullopt;
}

absl::Span<const Kernel> CudaKernels() {
  static const auto* const rows = new Rows(MakeRows());  // Never destroyed: kernels stay valid.
  return rows->kernels;
}

}  // namespace gemmd
