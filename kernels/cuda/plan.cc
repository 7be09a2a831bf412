// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/plan.h"

#include "kernels/cuda/epilogue.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/rows.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/split_float.h"
#include "kernels/matrix/status.h"
#include "kernels/promotion.h"

namespace gemmd {
namespace {

constexpr int64_t kWorkspaceAlignment = 256;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Hands out parts of the workspace.
class Allocator {
 public:
  int64_t Take(Checked bytes) {
    const int64_t offset = total_.value().value_or(0);
    const std::optional<int64_t> value = bytes.value();
    total_ = total_ + (value ? Checked(*value) + Checked(kWorkspaceAlignment - 1) : bytes);
    if (total_.value())
      total_ = Checked(*total_.value() / kWorkspaceAlignment * kWorkspaceAlignment);
    return offset;
  }
  const Checked& total() const { return total_; }

 private:
  Checked total_ = Checked(0);
};

// The lines of an operand as the kernel reads them: `lines` of `length` elements each.
struct Lines {
  LineAxis axis;
  int64_t lines;
  int64_t length;
};

Lines LinesAlong(LineAxis axis, mma::Operand operand, const Problem& problem) {
  const int64_t across = operand == mma::Operand::kA ? problem.m : problem.n;
  return axis == LineAxis::kK ? Lines{axis, across, problem.k} : Lines{axis, problem.k, across};
}

void Pack(OperandPlan& plan, int parts, bool is_shared, int64_t batch, Allocator& workspace) {
  plan.is_packed = true;
  plan.line_stride_bytes = RoundUp(plan.line_bytes, kLineAlignment);
  const Checked bytes = Checked(plan.lines) * Checked(plan.line_stride_bytes) * Checked(parts);
  plan.batch_stride_bytes = is_shared ? 0 : bytes.value().value_or(0);
  plan.offset = workspace.Take(is_shared ? bytes : bytes * Checked(batch));
}

bool IsAligned(int64_t bytes) { return bytes % kLineAlignment == 0; }

// Whether a dense operand can be read in place: it has the type and the axis of the row's lines,
// and these are aligned.
bool LiesRight(const CudaRow& row, mma::Operand operand, const Problem& problem) {
  const MatrixLayout& layout = operand == mma::Operand::kA ? problem.a : problem.b;
  const int64_t bits = mma::ContainerBits(row.instruction, operand);
  const Lines lines = LinesAlong(LineAxisOf(row, operand), operand, problem);
  return AxisInMemory(operand, layout) == lines.axis && bits == BitsOf(layout.type) &&
         lines.length * bits % (8 * kLineAlignment) == 0 && IsAligned(layout.line_stride_bytes()) &&
         layout.line_stride_bytes() <= kMaxLineBytes && IsAligned(layout.batch_stride_bytes);
}

// The operands that lie across k and can be read so.
Across AcrossOf(CudaRow row, const Problem& problem) {
  if (!CanReadAcross(row)) return Across::kNone;
  row.across = Across::kBoth;
  const bool a = LiesRight(row, mma::Operand::kA, problem);
  const bool b = LiesRight(row, mma::Operand::kB, problem);
  if (a && b) return Across::kBoth;
  if (a) return Across::kA;
  return b ? Across::kB : Across::kNone;
}

OperandPlan PlanDense(const CudaRow& row, mma::Operand operand, const Problem& problem,
                      Allocator& workspace) {
  const MatrixLayout& layout = operand == mma::Operand::kA ? problem.a : problem.b;
  const int64_t bits = mma::ContainerBits(row.instruction, operand);
  const Lines lines = LinesAlong(LineAxisOf(row, operand), operand, problem);
  OperandPlan plan;
  plan.lines = lines.lines;
  plan.line_bytes = (lines.length * bits + 7) / 8;
  if (LiesRight(row, operand, problem)) {
    plan.line_stride_bytes = layout.line_stride_bytes();
    plan.batch_stride_bytes = layout.batch_stride_bytes;
  } else {
    Pack(plan, PartsOfOperands(row), layout.batch_stride_bytes == 0, problem.batch, workspace);
  }
  return plan;
}

// Plans a sparse A: its values, and its metadata in the workspace.
absl::Status PlanSparse(const CudaRow& row, const Problem& problem, Allocator& workspace,
                        CudaPlan& plan) {
  const mma::Instruction& instruction = row.instruction;
  ASSIGN_OR_RETURN(const SparseLayout layout,
                   SparseLayoutOf("a", problem.a.type, problem.m, problem.k));
  const bool is_shared = problem.a.batch_stride_bytes == 0;
  plan.a.lines = problem.m;
  plan.a.line_bytes = layout.value_line_bytes;
  const bool lies_right =
      mma::ContainerBits(instruction, mma::Operand::kA) == BitsOf(layout.type) &&
      IsAligned(layout.value_line_bytes) && layout.value_line_bytes <= kMaxLineBytes &&
      IsAligned(problem.a.batch_stride_bytes);
  if (lies_right) {
    plan.a.line_stride_bytes = layout.value_line_bytes;
    plan.a.batch_stride_bytes = problem.a.batch_stride_bytes;
  } else {
    plan.a.line_bytes = layout.kept() * mma::ContainerBits(instruction, mma::Operand::kA) / 8;
    Pack(plan.a, 1, is_shared, problem.batch, workspace);
  }
  const int64_t tiles = TilesDown(row, problem.m) * (row.tile.m / kMetadataRows) *
                        (RoundUp(problem.k, row.tile.k) / (instruction.k * StepsOfMetadata(row)));
  constexpr int64_t kBytesOfTile = 32 * sizeof(uint32_t);
  const Checked bytes = Checked(tiles) * Checked(kBytesOfTile);
  plan.metadata_batch_stride_bytes = is_shared ? 0 : bytes.value().value_or(0);
  plan.metadata_offset = workspace.Take(is_shared ? bytes : bytes * Checked(problem.batch));
  return absl::OkStatus();
}

// Whether warpgroups can write D directly. In most rows the copy engine writes it, in whole 16-byte
// chunks even at the end of a line, but bytes between lines must not change.
bool StoresWhole(const CudaRow& row, const Problem& problem) {
  const ElementType accumulators = AccumulatorType(row);
  const bool fits = HasRoomToFinish(row) && FitsRegisters(problem) &&
                    (problem.activation == Activation::kNone ||
                     problem.activation == Activation::kRelu || HasRoomToActivate(row));
  const bool is_finished =
      fits && problem.d.type != ElementType::kS32 && Stores(row, problem.d.type);
  if (!StoresDirectly(problem, accumulators) && !is_finished) return false;
  if (IsNarrow(row)) return true;
  return problem.d.order == Order::kRowMajor &&
         problem.n * BitsOf(problem.d.type) % (8 * kLineAlignment) == 0 &&
         IsAligned(problem.d.line_stride_bytes()) && IsAligned(problem.d.batch_stride_bytes);
}

// Returns the total size.
Checked PlanSums(const CudaRow& row, const Problem& problem, SumsPlan& plan) {
  if (!HasWarpgroups(row) || StoresWhole(row, problem)) return Checked(0);
  plan.are_kept = true;
  const Checked line = Checked(problem.n) * Checked(BitsOf(AccumulatorType(row)) / 8);
  plan.line_stride_bytes = RoundUp(line.value().value_or(0), kLineAlignment);
  const Checked bytes = (line + Checked(kLineAlignment)) * Checked(problem.m);
  plan.batch_stride_bytes = problem.m * plan.line_stride_bytes;
  return bytes * Checked(problem.batch);
}

// Whether a wide row can store a D in columns as the rows of its transpose. Lines of D, and of the
// sums that may be kept in its place, have less than 2 GiB.
bool StoresColumns(const CudaRow& row, const Problem& problem) {
  constexpr int64_t kMaxElements = kMaxLineBytes / int64_t{sizeof(float)} - kLineAlignment;
  return HasWarpgroups(row) && !row.instruction.is_sparse() && !row.splits_f32 &&
         problem.d.order == Order::kColumnMajor && problem.m <= kMaxElements &&
         problem.d.line_stride_bytes() <= kMaxLineBytes;
}

absl::Status TooLarge() { return absl::ResourceExhaustedError("workspace: more than 2^63 bytes"); }

Checked RangesBytes(const MatrixLayout& layout, int64_t lines, int64_t batch) {
  const int64_t matrices = layout.batch_stride_bytes == 0 ? 1 : batch;
  return Checked(RangesOf(lines)) * Checked(int64_t{sizeof(MagnitudeRange)}) * Checked(matrices);
}

SplitPlan PlanSplit(const Problem& problem, Allocator& workspace) {
  constexpr int64_t kBitsOfWord = 32;
  SplitPlan plan;
  plan.is_used = true;
  plan.words_of_row = problem.n / kBitsOfWord + (problem.n % kBitsOfWord != 0 ? 1 : 0);
  workspace.Take(Checked(int64_t{sizeof(uint32_t)}));
  plan.marks_offset = workspace.Take(Checked(plan.words_of_row) * Checked(problem.m) *
                                     Checked(problem.batch) * Checked(int64_t{sizeof(uint32_t)}));
  plan.bytes = workspace.total().value().value_or(0);
  return plan;
}

// `padded` are the rows or columns of whole tiles.
FactorPlan::Lines TakeFactors(const BlockScale* blocks, int64_t padded, const FactorPlan& plan,
                              int64_t batch, Allocator& factors) {
  FactorPlan::Lines lines;
  lines.lines = padded;
  lines.matrices = blocks != nullptr && blocks->per_matrix ? batch : 1;
  lines.offset = factors.Take(Checked(padded) * Checked(plan.promotions) * Checked(lines.matrices) *
                              Checked(int64_t{sizeof(float)}));
  return lines;
}

FactorPlan PlanFactors(const CudaRow& row, const Problem& problem, Allocator& factors) {
  FactorPlan plan;
  plan.promotion_k = row.promotion_k;
  plan.promotions = RoundUp(problem.k, row.tile.k) / row.promotion_k;
  plan.a = TakeFactors(problem.blocks_of_a(), TilesDown(row, problem.m) * row.tile.m, plan,
                       problem.batch, factors);
  plan.b = TakeFactors(problem.blocks_of_b(), RoundUp(problem.n, row.tile.n), plan, problem.batch,
                       factors);
  plan.bytes = factors.total().value().value_or(0);
  return plan;
}

}  // namespace

LineAxis AxisInMemory(mma::Operand operand, const MatrixLayout& layout) {
  const bool is_along_k = (operand == mma::Operand::kA) == (layout.order == Order::kRowMajor);
  return is_along_k ? LineAxis::kK : LineAxis::kMn;
}

Multiplication MultiplicationOf(const CudaRow& row, const Problem& problem) {
  const bool transposes =
      IsNarrow(row) ? Transposes(row, problem.m, problem.n) : StoresColumns(row, problem);
  const std::optional<CudaRow> other = transposes ? RowOfTranspose(row) : std::nullopt;
  Multiplication multiplication =
      other ? Multiplication{*other, Transposed(problem), true} : Multiplication{row, problem};
  multiplication.row.across = AcrossOf(multiplication.row, multiplication.problem);
  if (problem.has_block_scales() && problem.has_product() &&
      ScalesPromotedSums(multiplication.row.instruction, multiplication.row.promotion_k)) {
    multiplication.row = WithFactors(multiplication.row);
  }
  return multiplication;
}

absl::StatusOr<CudaPlan> PlanOf(const CudaRow& row, const Problem& problem) {
  CudaPlan plan;
  if (!problem.has_output() || !problem.has_product()) return plan;
  // Each operand's part separately, independent of its offset.
  Allocator of_a;
  Allocator of_split;
  Allocator of_factors;
  Allocator of_b;
  Allocator of_sums;
  const bool multiplies = !row.splits_f32 || IsSplit(problem.k);
  const bool is_split = row.splits_f32 && multiplies;
  if (row.instruction.is_sparse()) {
    RETURN_IF_ERROR(PlanSparse(row, problem, of_a, plan));
  } else if (multiplies) {
    plan.a = PlanDense(row, mma::Operand::kA, problem, of_a);
  }
  if (is_split) {
    plan.split = PlanSplit(problem, of_split);
    plan.split.a_ranges_offset = of_a.Take(RangesBytes(problem.a, problem.m, problem.batch));
    of_b.Take(RangesBytes(problem.b, problem.n, problem.batch));
    plan.split.b_ranges_bytes = of_b.total().value().value_or(0);
  }
  if (multiplies) plan.b = PlanDense(row, mma::Operand::kB, problem, of_b);
  if (row.scales_sums) plan.factors = PlanFactors(row, problem, of_factors);
  of_sums.Take(PlanSums(row, problem, plan.sums));
  const Checked total =
      of_a.total() + of_split.total() + of_factors.total() + of_b.total() + of_sums.total();
  if (!total.value()) return TooLarge();
  plan.a_workspace_bytes = *of_a.total().value();
  plan.b_workspace_bytes = *of_b.total().value();
  plan.workspace_bytes = *total.value();
  return plan;
}

}  // namespace gemmd
