// SPDX-License-Identifier: Apache-2.0
//
// The launch of library rows around their engines: expands a sparse A, widens operands, maps any
// order and leading dimension to the engine's row-major call, loops over the batch and applies the
// epilogue; and the prediction of its time.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/cpu/host.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/row_check.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/widen.h"
#include "kernels/device_profile.h"
#include "kernels/epilogue.h"
#include "kernels/kernel.h"
#include "kernels/matrix/abortable_loop.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/problem.h"

namespace gemmd {
namespace {

// Sums of products of integers of at most 8 bits, each below 2^16, are exact in f64 below 2^53.
constexpr int64_t kMaxExactDepth = int64_t{1} << 37;
// Sums of signs must fit s32, because the result is derived from half of the sum.
constexpr int64_t kMaxSignDepth = INT32_MAX;
constexpr int64_t kAlignment = 64;

// An operand as passed to the engine: in place, or a copy in the workspace.
struct OperandPlan {
  std::optional<SparseLayout> sparse;  // Absent if the operand is dense.
  MatrixLayout dense;                  // As given, or expanded in the workspace.
  int64_t dense_offset = 0;
  std::optional<Widening> widening;  // Absent if the operand is used in place.
  MatrixLayout layout;               // The layout that the engine gets.
  int64_t offset = 0;                // The copy's place in the workspace.
};

struct Plan {
  OperandPlan a;
  OperandPlan b;
  int64_t depth = 0;  // k, or more (Engine::safe_depth).
  bool accumulates_in_d = false;
  MatrixLayout accumulators;  // D's own layout, or one in the workspace.
  int64_t accumulators_offset = 0;
  int64_t workspace_bytes = 0;
};

// Reserves the place of one matrix in the workspace and returns its offset.
absl::StatusOr<int64_t> Reserve(const MatrixLayout& layout, int64_t& workspace_bytes) {
  const int64_t offset = workspace_bytes;
  int64_t end = 0;
  if (__builtin_add_overflow(offset, layout.batch_stride_bytes, &end) ||
      __builtin_add_overflow(end, kAlignment - 1, &end)) {
    return absl::ResourceExhaustedError(
        GotWant("workspace", "more than 2^63 bytes", "operands that fit memory when widened"));
  }
  workspace_bytes = end / kAlignment * kAlignment;
  return offset;
}

// A layout of the given order for the workspace, without gaps.
absl::StatusOr<MatrixLayout> InWorkspace(ElementType type, Order order, int64_t rows,
                                         int64_t columns) {
  absl::StatusOr<MatrixLayout> layout = TightLayout("workspace", type, order, rows, columns);
  if (!layout.ok()) return absl::ResourceExhaustedError(layout.status().message());
  return layout;
}

// The conversion of an operand before the engine uses it as Y or X.
std::optional<Widening> WideningOf(const CpuRow& row, const Problem& problem, ElementType from,
                                   ElementType compute, bool is_y) {
  const bool is_unsigned = compute == ElementType::kU8;
  if (is_y && is_unsigned && row.engine->biases_unsigned_y) return Widening::kLess128;
  if (from == ElementType::kB1 && problem.bit_operation == BitOperation::kXor) {
    return Widening::kSign;
  }
  if (from != compute) return Widening::kValue;
  return std::nullopt;
}

bool IsPadded(const MatrixLayout& layout) {
  return layout.leading_dimension != layout.line_length();
}

// The engine's D is row major: a column-major D is computed as its transpose, B^T A^T.
bool IsSwapped(const Problem& problem) { return problem.d.order == Order::kColumnMajor; }

void SwapFactors(PlainProduct& product) {
  std::swap(product.m, product.n);
  std::swap(product.x, product.y);
}

// Whether a launch on any number of threads may divide the matrices into panels.
bool MayHavePanels(const CpuRow& row, const Problem& problem) {
  const bool is_swapped = IsSwapped(problem);
  PlainProduct product = {
      .m = problem.m,
      .n = problem.n,
      .k = problem.k,
      .x = {.type = row.a_compute,
            .transposed = (problem.a.order == Order::kColumnMajor) != is_swapped},
      .y = {.type = row.b_compute,
            .transposed = (problem.b.order == Order::kColumnMajor) != is_swapped}};
  if (is_swapped) SwapFactors(product);
  return PanelOf(*row.engine, product, 1) != PanelShape{product.m, product.n, product.k};
}

// k, or a larger depth if the engine is wrong for this k; both operands are then copied and
// zero-padded. A panel is a matrix with padding.
int64_t DepthOf(const CpuRow& row, const Problem& problem, const Plan& plan) {
  if (row.engine->safe_depth == nullptr) return problem.k;
  const bool is_padded = MayHavePanels(row, problem) || (!plan.a.widening && IsPadded(problem.a)) ||
                         (!plan.b.widening && IsPadded(problem.b)) ||
                         (plan.accumulates_in_d && IsPadded(problem.d));
  return row.engine->safe_depth(problem.k, is_padded);
}

absl::Status PlanExpansion(const MatrixLayout& operand, OperandPlan& plan,
                           int64_t& workspace_bytes) {
  plan.dense = operand;
  if (!operand.is_sparse()) return absl::OkStatus();
  ASSIGN_OR_RETURN(plan.sparse, SparseLayoutOf("a", operand.type, operand.rows, operand.columns));
  ASSIGN_OR_RETURN(plan.dense,
                   InWorkspace(operand.type, operand.order, operand.rows, operand.columns));
  ASSIGN_OR_RETURN(plan.dense_offset, Reserve(plan.dense, workspace_bytes));
  return absl::OkStatus();
}

absl::Status PlanCopy(ElementType compute, int64_t rows, int64_t columns, OperandPlan& plan,
                      int64_t& workspace_bytes) {
  plan.layout = plan.dense;
  if (!plan.widening && rows == plan.dense.rows && columns == plan.dense.columns) {
    return absl::OkStatus();
  }
  if (!plan.widening) plan.widening = Widening::kValue;
  const bool is_biased = plan.widening == Widening::kLess128;
  ASSIGN_OR_RETURN(plan.layout, InWorkspace(is_biased ? ElementType::kS8 : compute,
                                            plan.dense.order, rows, columns));
  ASSIGN_OR_RETURN(plan.offset, Reserve(plan.layout, workspace_bytes));
  return absl::OkStatus();
}

absl::StatusOr<Plan> MakePlan(const CpuRow& row, const Problem& problem) {
  Plan plan;
  plan.accumulates_in_d = problem.d.type == row.engine->accumulator;
  plan.accumulators = problem.d;
  if (!problem.has_output() || !problem.has_product()) return plan;
  const bool a_is_y = IsSwapped(problem);
  plan.a.widening = WideningOf(row, problem, row.a, row.a_compute, a_is_y);
  plan.b.widening = WideningOf(row, problem, row.b, row.b_compute, !a_is_y);
  plan.depth = DepthOf(row, problem, plan);
  RETURN_IF_ERROR(PlanExpansion(problem.a, plan.a, plan.workspace_bytes));
  RETURN_IF_ERROR(PlanExpansion(problem.b, plan.b, plan.workspace_bytes));
  RETURN_IF_ERROR(PlanCopy(row.a_compute, problem.m, plan.depth, plan.a, plan.workspace_bytes));
  RETURN_IF_ERROR(PlanCopy(row.b_compute, plan.depth, problem.n, plan.b, plan.workspace_bytes));
  if (!plan.accumulates_in_d) {
    ASSIGN_OR_RETURN(plan.accumulators,
                     InWorkspace(row.engine->accumulator, problem.d.order, problem.m, problem.n));
    ASSIGN_OR_RETURN(plan.accumulators_offset, Reserve(plan.accumulators, plan.workspace_bytes));
  }
  return plan;
}

absl::Status Refuse(std::string_view field, std::string_view got, std::string_view want) {
  return absl::UnimplementedError(GotWant(field, got, want));
}

absl::Status CheckExtent(const Engine& engine, std::string_view field, int64_t value) {
  if (value <= engine.max_extent) return absl::OkStatus();
  return Refuse(field, Concat(value),
                Concat("at most ", engine.max_extent, " for ", engine.provider));
}

absl::Status CheckExtents(const Engine& engine, const Problem& problem) {
  RETURN_IF_ERROR(CheckExtent(engine, "m", problem.m));
  RETURN_IF_ERROR(CheckExtent(engine, "n", problem.n));
  RETURN_IF_ERROR(CheckExtent(engine, "k", problem.k));
  RETURN_IF_ERROR(CheckExtent(engine, "a.leading_dimension", problem.a.leading_dimension));
  RETURN_IF_ERROR(CheckExtent(engine, "b.leading_dimension", problem.b.leading_dimension));
  return CheckExtent(engine, "d.leading_dimension", problem.d.leading_dimension);
}

// The operand of one matrix of the batch, expanded and copied first if the plan says so: into the
// workspace, or into its form's memory.
const std::byte* Prepare(const OperandPlan& plan, const MatrixLayout& operand,
                         const std::byte* data, int64_t index, const OperandForm& form,
                         const GemmArgs& args) {
  const auto place = [&](int64_t offset, bool is_form) {
    return is_form && form.bytes != nullptr ? form.bytes : args.workspace.data() + offset;
  };
  const std::byte* matrix = data + index * operand.batch_stride_bytes;
  const bool is_made = form.is_made || (index > 0 && operand.batch_stride_bytes == 0);
  if (plan.sparse) {
    std::byte* dense = place(plan.dense_offset, /*is_form=*/!plan.widening);
    if (!is_made) Expand(*plan.sparse, matrix, dense, args.abort);
    matrix = dense;
  }
  if (!plan.widening) return matrix;
  std::byte* copy = place(plan.offset, /*is_form=*/true);
  if (!is_made) {
    Widen(*plan.widening, plan.dense, matrix, plan.layout, copy, args.abort);
  }
  return copy;
}

Factor MakeFactor(const OperandPlan& plan, const std::byte* data, bool is_swapped) {
  const bool is_column_major = plan.layout.order == Order::kColumnMajor;
  return {.data = data,
          .type = plan.layout.type,
          .leading_dimension = std::max<int64_t>(1, plan.layout.leading_dimension),
          .transposed = is_column_major != is_swapped};
}

absl::Status MultiplyOne(const CpuRow& row, const Plan& plan, const GemmArgs& args, int64_t index,
                         std::byte* accumulators) {
  const Problem& problem = args.problem;
  const bool is_swapped = IsSwapped(problem);
  const std::byte* a = Prepare(plan.a, problem.a, args.a, index, args.a_form, args);
  const std::byte* b = Prepare(plan.b, problem.b, args.b, index, args.b_form, args);
  const OperandPlan& y_plan = is_swapped ? plan.a : plan.b;
  PlainProduct product = {
      .m = problem.m,
      .n = problem.n,
      .k = plan.depth,
      .x = MakeFactor(plan.a, a, is_swapped),
      .y = MakeFactor(plan.b, b, is_swapped),
      .y_is_biased = y_plan.widening == Widening::kLess128,
      .d = accumulators,
      .leading_dimension = std::max<int64_t>(1, plan.accumulators.leading_dimension),
  };
  if (is_swapped) SwapFactors(product);
  const PanelShape panel = PanelOf(*row.engine, product, omp_get_max_threads());
  return MultiplyInPanels(*row.engine, product, panel, args.abort);
}

// Whether the engine's D is the problem's.
bool IsDone(const CpuRow& row, const Plan& plan, const Problem& problem) {
  return problem.has_product() && plan.accumulates_in_d && problem.is_plain() &&
         row.accumulation == row.engine->accumulator && plan.a.widening != Widening::kSign;
}

absl::Status RunOne(const CpuRow& row, const Plan& plan, const GemmArgs& args, int64_t index) {
  const Problem& problem = args.problem;
  Accumulators accumulators;
  accumulators.stored = row.engine->accumulator;
  accumulators.type = row.accumulation;
  accumulators.leading_dimension = plan.accumulators.leading_dimension;
  if (problem.has_product()) {
    std::byte* target = plan.accumulates_in_d ? args.d + index * problem.d.batch_stride_bytes
                                              : args.workspace.data() + plan.accumulators_offset;
    RETURN_IF_ERROR(MultiplyOne(row, plan, args, index, target));
    accumulators.data = target;
    accumulators.are_sums_of_signs = plan.a.widening == Widening::kSign;
    if (IsDone(row, plan, problem)) return absl::OkStatus();
  }
  ApplyEpilogue(args, index, accumulators);
  return IsAborted(args) ? AbortedLaunch() : absl::OkStatus();
}

absl::Status RunInTurn(const CpuRow& row, const Plan& plan, const GemmArgs& args) {
  for (int64_t index = 0; index < args.problem.batch; ++index) {
    if (IsAborted(args)) return AbortedLaunch();
    RETURN_IF_ERROR(RunOne(row, plan, args, index));
  }
  return absl::OkStatus();
}

// Distributes the batch to threads; the libraries use one thread each.
absl::Status RunSideBySide(const CpuRow& row, const Plan& plan, const GemmArgs& args) {
  absl::Status first_error;
  ForEachUnlessAborted(args.abort, /*is_shared=*/true, args.problem.batch, [&](int64_t index) {
    const OneThread limit;
    const absl::Status status = RunOne(row, plan, args, index);
    if (!status.ok()) {
#pragma omp critical
      first_error.Update(status);
    }
  });
  return IsAborted(args) ? AbortedLaunch() : first_error;
}

const CpuRow& RowOf(const Kernel& kernel) { return *static_cast<const CpuRow*>(kernel.row); }

absl::Status Available(const Kernel& kernel, const Target& target) {
  if (target.kind != DeviceKind::kCpu) {
    return absl::FailedPreconditionError(GotWant("device", NameOf(target.kind), "cpu"));
  }
  for (const RowFault& fault : target.faulty_rows) {
    if (fault.kernel->position != kernel.position) continue;
    return absl::FailedPreconditionError(
        Concat("kernel: got one that failed its check at the start (", fault.reason,
               "), want one that is right on this processor"));
  }
  return RowOf(kernel).engine->available(target);
}

absl::Status Supports(const Kernel& kernel, const Problem& problem) {
  const CpuRow& row = RowOf(kernel);
  RETURN_IF_ERROR(SupportsTypes(kernel, problem));
  const bool is_counted_in_floats = IsInteger(row.a) && IsFloat(row.engine->accumulator);
  if (is_counted_in_floats && problem.k >= kMaxExactDepth) {
    return Refuse("k", Concat(problem.k), "less than 2^37, so that sums in f64 are exact");
  }
  if (problem.bit_operation == BitOperation::kXor && problem.k > kMaxSignDepth) {
    return Refuse("k", Concat(problem.k), "less than 2^31 for xor");
  }
  return CheckExtents(*row.engine, problem);
}

absl::StatusOr<int64_t> WorkspaceBytes(const Kernel& kernel, const Problem& problem) {
  ASSIGN_OR_RETURN(const Plan plan, MakePlan(RowOf(kernel), problem));
  return plan.workspace_bytes;
}

// The copy of an operand for the engine. The workspace holds one matrix at a time, so a batch has
// none. The form's number encodes the conversion, and whether the operand is A or B, where k runs
// in different directions.
absl::StatusOr<DerivedOperand> Derived(const Kernel& kernel, const Problem& problem,
                                       mma::Operand operand) {
  const bool is_a = operand == mma::Operand::kA;
  const MatrixLayout& given = is_a ? problem.a : problem.b;
  const bool is_one = problem.batch == 1 || given.batch_stride_bytes == 0;
  if (!problem.has_output() || !problem.has_product() || !is_one) return DerivedOperand{};
  ASSIGN_OR_RETURN(const Plan whole, MakePlan(RowOf(kernel), problem));
  const OperandPlan& plan = is_a ? whole.a : whole.b;
  if (!plan.widening && !plan.sparse) return DerivedOperand{};
  const MatrixLayout& copy = plan.widening ? plan.layout : plan.dense;
  const bool is_deeper = copy.rows != given.rows || copy.columns != given.columns;
  const auto widening = plan.widening ? 1 + static_cast<uint32_t>(*plan.widening) : 0;
  const auto type = static_cast<uint32_t>(copy.type);
  return DerivedOperand{.offset = plan.widening ? plan.offset : plan.dense_offset,
                        .bytes = copy.batch_stride_bytes,
                        .form = widening << 16 | type << 8 |
                                (!is_deeper ? 0
                                 : is_a     ? 1
                                            : 2)};
}

// Operands larger than this are read from memory each time.
constexpr double kCachedBytes = 16.0 * 1024 * 1024;

double Preparing(const HostCosts& costs, const OperandPlan& plan, const MatrixLayout& operand) {
  const double expansion = operand.is_sparse() ? ExpansionSeconds(costs, operand) : 0;
  return expansion + (plan.widening ? WideningSeconds(costs, operand, plan.layout.type) : 0);
}

double BytesOfMatrix(const MatrixLayout& layout) {
  return ElementsOf(layout, 1) * BitsOf(layout.type) / 8;
}

// The engine gets row-major factors X and Y, transposed if they are column major.
double Multiplying(const Problem& problem, const Plan& plan, const HostCosts& costs,
                   const EngineTimes& times) {
  const bool is_swapped = IsSwapped(problem);
  // If Y holds u8 values less 128, libraries have no special path for a single line.
  const bool is_biased = (is_swapped ? plan.a : plan.b).widening == Widening::kLess128;
  const bool a_is_column_major = problem.a.order == Order::kColumnMajor;
  const bool b_is_column_major = problem.b.order == Order::kColumnMajor;
  const int64_t min_extent = is_biased ? ExtentGrid::kExtents[1] : 1;
  const int64_t m = std::max(problem.m, problem.n > 1 ? min_extent : 1);
  const int64_t n = std::max(problem.n, min_extent);
  const size_t x_is_transposed = is_swapped ? !b_is_column_major : a_is_column_major;
  const size_t y_is_transposed = is_swapped ? !a_is_column_major : b_is_column_major;
  const ExtentGrid& grid = times.grids[x_is_transposed][y_is_transposed];
  double seconds = is_swapped ? grid.Seconds(n, m, plan.depth) : grid.Seconds(m, n, plan.depth);
  if (is_biased) {
    const auto x_lines = static_cast<double>(is_swapped ? n : m);
    seconds += x_lines * static_cast<double>(plan.depth) * times.biased[x_is_transposed];
  }
  const double bytes = BytesOfMatrix(problem.a) + BytesOfMatrix(problem.b);
  if (bytes > kCachedBytes && costs.memory_bytes_per_second > 0) {
    seconds = std::max(seconds, bytes / costs.memory_bytes_per_second);
  }
  return seconds;
}

// The number of times an operand is prepared.
double Times(const MatrixLayout& operand, double batch) {
  return operand.batch_stride_bytes == 0 ? std::min(batch, 1.0) : batch;
}

// Sums the times of the launch's work on each matrix of the batch: expanding A, widening,
// multiplying, finishing. Threads share one matrix or the batch, as Launch does. Absent if the
// engine was not measured.
std::optional<double> PredictedOnHost(const Kernel& kernel, const Problem& problem,
                                      const HostCosts& costs) {
  const CpuRow& row = RowOf(kernel);
  const absl::StatusOr<Plan> plan = MakePlan(row, problem);
  const auto times =
      std::find_if(costs.engines.begin(), costs.engines.end(),
                   [&](const EngineTimes& of) { return of.engine == kernel.engine; });
  if (!plan.ok() || times == costs.engines.end()) return std::nullopt;
  if (!problem.has_output()) return costs.launch;
  const auto batch = static_cast<double>(problem.batch);
  double preparing = 0;
  double multiplying = 0;
  if (problem.has_product()) {
    preparing = Times(problem.a, batch) * Preparing(costs, plan->a, problem.a) +
                Times(problem.b, batch) * Preparing(costs, plan->b, problem.b);
    multiplying = Multiplying(problem, *plan, costs, *times);
  }
  const double finishing =
      IsDone(row, *plan, problem)
          ? 0
          : EpilogueSeconds(costs, problem, row.engine->accumulator, row.accumulation);
  const double all = preparing + batch * (multiplying + finishing);
  // Threads share large matrices one at a time, and process small ones side by side.
  const bool is_shared = !IsTooSmallToShare(problem, 1);
  const bool is_side_by_side =
      !is_shared && plan->workspace_bytes == 0 && !IsTooSmallToShare(problem, problem.batch);
  if (costs.threads == 1 || (!is_shared && !is_side_by_side)) return costs.launch + all;
  const double shares = is_shared ? batch : 1;
  return costs.launch + shares * costs.share + all / costs.threads;
}

// If the host was not measured, assumes that a sparse A is expanded first.
double Predict(const Kernel& kernel, const Problem& problem, const DeviceProfile& profile,
               double rate) {
  if (profile.host != nullptr) {
    const std::optional<double> seconds = PredictedOnHost(kernel, problem, *profile.host);
    if (seconds) return *seconds;
  }
  const double expanded =
      problem.has_product() && problem.a.is_sparse() ? ElementsOf(problem.a, problem.batch) : 0;
  return EngineSeconds(kernel, problem, profile, rate) +
         expanded / profile.converted_elements_per_second;
}

absl::Status Launch(const Kernel& kernel, const GemmArgs& args) {
  const CpuRow& row = RowOf(kernel);
  const Problem& problem = args.problem;
  if (!problem.has_output()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Plan plan, MakePlan(row, problem));
  if (!IsTooSmallToShare(problem, 1)) return RunInTurn(row, plan, args);
  // The workspace holds one matrix at a time.
  const bool is_independent = plan.workspace_bytes == 0;
  if (is_independent && !IsTooSmallToShare(problem, problem.batch)) {
    return RunSideBySide(row, plan, args);
  }
  const OneThread limit;
  return RunInTurn(row, plan, args);
}

}  // namespace

const KernelFamily kCpuFamily = {.available = Available,
                                 .supports = Supports,
                                 .workspace_bytes = WorkspaceBytes,
                                 .launch = Launch,
                                 .predicted_seconds = Predict,
                                 .derived = Derived};

absl::Span<const Kernel> CpuKernels() { return kCpuRows; }

}  // namespace gemmd
