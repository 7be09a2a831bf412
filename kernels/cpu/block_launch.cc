// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/block_launch.h"

#include <algorithm>
#include <cstring>

#include "kernels/abortable_loop.h"
#include "kernels/cpu/block_operands.h"
#include "kernels/cpu/block_sums.h"
#include "kernels/cpu/threads.h"
#include "kernels/device_profile.h"
#include "kernels/epilogue.h"
#include "kernels/host_costs.h"
#include "kernels/sparse24.h"
#include "kernels/status_macros.h"
#include "kernels/supports.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

absl::Status Available(const Kernel&, const Target& target) {
  if (target.kind == DeviceKind::kCpu) return absl::OkStatus();
  return absl::FailedPreconditionError(GotWant("device", NameOf(target.kind), "cpu"));
}

absl::Status Supports(const Kernel& kernel, const Problem& problem) {
  RETURN_IF_ERROR(SupportsTypes(kernel, problem));
  if (problem.has_block_scales()) return absl::OkStatus();
  return absl::UnimplementedError(
      GotWant("a.scale.blocks, b.scale.blocks", "none", "factors of blocks of A or B"));
}

absl::StatusOr<int64_t> WorkspaceBytes(const Kernel&, const Problem& problem) {
  ASSIGN_OR_RETURN(const BlockPlan plan, PlanBlocks(problem));
  return plan.bytes;
}

// One matrix of the batch in the workspace.
class BlockProduct {
 public:
  BlockProduct(const GemmArgs& args, const BlockPlan& plan)
      : args_(args),
        problem_(args.problem),
        plan_(plan),
        path_(BestBlockPath()),
        is_shared_(!IsTooSmallToShare(args.problem, 1)),
        a_(PlaceOf(args.a_form, plan.a)),
        b_(PlaceOf(args.b_form, plan.b)) {}

  // What does not change from matrix to matrix stays in the workspace.
  void Prepare(int64_t index) {
    const BlockScale* const a_blocks = problem_.blocks_of_a();
    const BlockScale* const b_blocks = problem_.blocks_of_b();
    if (IsWanted(args_.a_form, problem_.a, index)) PrepareA(index);
    if (IsWanted(args_.b_form, problem_.b, index)) {
      WidenB(problem_.b, args_.b + index * problem_.b.batch_stride_bytes, b_, is_shared_,
             args_.abort);
    }
    if (a_blocks != nullptr && (index == 0 || a_blocks->per_matrix)) {
      const int64_t bytes = a_blocks->matrix_bytes(problem_.m, problem_.k);
      DecodeFactorsOfA(problem_, args_.a_factors + index * bytes, At<float>(plan_.a_factors),
                       args_.abort);
    }
    if (b_blocks != nullptr && (index == 0 || b_blocks->per_matrix)) {
      const int64_t bytes = b_blocks->matrix_bytes(problem_.n, problem_.k);
      DecodeFactorsOfB(problem_, args_.b_factors + index * bytes, At<float>(plan_.b_factors),
                       args_.abort);
    }
  }

  void Multiply(std::byte* d, int64_t leading_dimension) {
    const int64_t strips = (problem_.m + kStripRows - 1) / kStripRows;
    const int64_t panels = PanelsOf(problem_);
    ForEachUnlessAborted(args_.abort, is_shared_, strips * panels, [&](int64_t task) {
      MultiplyStrip(task % strips * kStripRows, task / strips, d, leading_dimension);
    });
  }

 private:
  template <typename T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(args_.workspace.data() + offset);
  }

  // Memory for what is derived, or its part of the workspace.
  float* PlaceOf(const OperandForm& form, int64_t offset) const {
    return form.bytes != nullptr ? reinterpret_cast<float*>(form.bytes) : At<float>(offset);
  }

  static bool IsWanted(const OperandForm& form, const MatrixLayout& layout, int64_t index) {
    return !form.is_made && (index == 0 || layout.batch_stride_bytes != 0);
  }

  void PrepareA(int64_t index) {
    const std::byte* matrix = args_.a + index * problem_.a.batch_stride_bytes;
    if (problem_.a.is_sparse()) {
      const SparseLayout sparse =
          SparseLayoutOf("a", problem_.a.type, problem_.m, problem_.k).value();
      Expand(sparse, matrix, At<std::byte>(plan_.dense_a), args_.abort);
      matrix = At<std::byte>(plan_.dense_a);
    }
    WidenA(DenseLayoutOf(problem_.a), matrix, a_, is_shared_, args_.abort);
  }

  // Rows beyond the matrix are computed with its last one, and not stored.
  void MultiplyStrip(int64_t row, int64_t panel, std::byte* d, int64_t leading_dimension) const {
    float totals[kStripRows][kPanelColumns];
    Strip strip = {};
    strip.k = problem_.k;
    strip.abort = args_.abort;
    strip.b = b_ + panel * problem_.k * kPanelColumns;
    strip.a_blocks = problem_.blocks_of_a();
    strip.b_blocks = problem_.blocks_of_b();
    strip.totals = totals;
    for (int64_t i = 0; i < kStripRows; ++i) {
      const int64_t line = std::min(row + i, problem_.m - 1);
      strip.a[i] = a_ + line * problem_.k;
      if (strip.a_blocks == nullptr) continue;
      strip.a_factors[i] = At<float>(plan_.a_factors) +
                           line / strip.a_blocks->lines * strip.a_blocks->depth_blocks(strip.k);
    }
    if (strip.b_blocks != nullptr) {
      strip.b_factors = At<float>(plan_.b_factors) +
                        panel * strip.b_blocks->depth_blocks(strip.k) * kPanelColumns;
    }
    SumStrip(path_, strip);
    const int64_t column = panel * kPanelColumns;
    const bool is_by_rows = problem_.d.order == Order::kRowMajor;
    for (int64_t i = 0; i < std::min(kStripRows, problem_.m - row); ++i) {
      for (int64_t j = 0; j < std::min(kPanelColumns, problem_.n - column); ++j) {
        const int64_t at = is_by_rows ? (row + i) * leading_dimension + column + j
                                      : (column + j) * leading_dimension + row + i;
        std::memcpy(d + at * static_cast<int64_t>(sizeof(float)), &totals[i][j], sizeof(float));
      }
    }
  }

  const GemmArgs& args_;
  const Problem& problem_;
  const BlockPlan& plan_;
  const BlockPath path_;
  const bool is_shared_;
  float* const a_;
  float* const b_;
};

absl::Status Launch(const Kernel&, const GemmArgs& args) {
  const Problem& problem = args.problem;
  if (!problem.has_output()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const BlockPlan plan, PlanBlocks(problem));
  BlockProduct product(args, plan);
  const bool is_in_d = problem.d.type == ElementType::kF32;
  Accumulators accumulators;
  accumulators.leading_dimension = is_in_d ? problem.d.leading_dimension
                                   : problem.d.order == Order::kRowMajor ? problem.n
                                                                         : problem.m;
  for (int64_t index = 0; index < problem.batch; ++index) {
    if (IsAborted(args)) return AbortedLaunch();
    if (problem.has_product()) {
      std::byte* const totals = is_in_d ? args.d + index * problem.d.batch_stride_bytes
                                        : args.workspace.data() + plan.totals;
      product.Prepare(index);
      product.Multiply(totals, accumulators.leading_dimension);
      accumulators.data = totals;
    }
    ApplyEpilogue(args, index, accumulators);
  }
  return IsAborted(args) ? AbortedLaunch() : absl::OkStatus();
}

// The widened operand. The workspace holds one matrix at a time, so there is none of a batch.
absl::StatusOr<DerivedOperand> Derived(const Kernel&, const Problem& problem,
                                       mma::Operand operand) {
  constexpr uint32_t kLinesOfA = 1u << 24;
  constexpr uint32_t kPanelsOfB = 2u << 24;
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  const bool is_a = operand == mma::Operand::kA;
  const MatrixLayout& given = is_a ? problem.a : problem.b;
  const bool is_one = problem.batch == 1 || given.batch_stride_bytes == 0;
  if (!problem.has_output() || !problem.has_product() || !is_one) return DerivedOperand();
  ASSIGN_OR_RETURN(const BlockPlan plan, PlanBlocks(problem));
  if (is_a) {
    return DerivedOperand{
        .offset = plan.a, .bytes = problem.m * problem.k * kFloatBytes, .form = kLinesOfA};
  }
  return DerivedOperand{.offset = plan.b,
                        .bytes = PanelsOf(problem) * kPanelColumns * problem.k * kFloatBytes,
                        .form = kPanelsOfB};
}

// How often k is cut, at most.
double PartsOf(const Problem& problem) {
  double parts = 0;
  for (const BlockScale* const blocks : {problem.blocks_of_a(), problem.blocks_of_b()}) {
    if (blocks != nullptr) parts += static_cast<double>(blocks->depth_blocks(problem.k));
  }
  return std::clamp(parts, 1.0, static_cast<double>(std::max<int64_t>(problem.k, 1)));
}

// Widening an operand of one matrix, which goes to strips element by element: what that takes, on
// an Intel Xeon with AVX-512. Lines of A that lie across the strips' own are the dearest.
double PreparingSeconds(const HostCosts& costs, const MatrixLayout& operand, bool is_across,
                        double element_seconds) {
  constexpr double kAcrossSeconds = 7e-9;  // Once it does not fit a cache.
  constexpr double kCachedBytes = 2 * 1024 * 1024;
  double seconds = WideningSeconds(costs, DenseLayoutOf(operand), ElementType::kF32);
  if (operand.is_sparse()) seconds += ExpansionSeconds(costs, operand);
  const double elements = ElementsOf(operand, 1);
  seconds += elements * element_seconds;
  if (is_across && elements * sizeof(float) > kCachedBytes) seconds += elements * kAcrossSeconds;
  return seconds;
}

// Whole strips and panels are computed. Scaling a part's sum takes some eight times as long as a
// multiplication, and a strip some time of its own.
double MultiplyingSeconds(const Problem& problem, double rate) {
  constexpr double kScaling = 16;
  constexpr double kStripSeconds = 80e-9;
  const double rows = static_cast<double>(problem.m / kStripRows + (problem.m % kStripRows != 0));
  const double strips = rows * static_cast<double>(PanelsOf(problem));
  const double operations = 2 * static_cast<double>(problem.k) + kScaling * PartsOf(problem);
  return strips *
         (kStripSeconds + static_cast<double>(kStripRows * kPanelColumns) * operations / rate);
}

double Predict(const Kernel&, const Problem& problem, const DeviceProfile& profile, double rate) {
  if (!problem.has_output()) return 0;
  if (profile.host == nullptr) return MultiplyingSeconds(problem, rate);
  constexpr double kMatrixSeconds = 0.5e-6;  // Three loops over what there may be little of.
  constexpr double kPanelSeconds = 0.45e-9;  // An element's place in a panel.
  const HostCosts& costs = *profile.host;
  const auto batch = static_cast<double>(problem.batch);
  double seconds = costs.launch;
  if (problem.has_product()) {
    const auto times = [&](const MatrixLayout& operand) {
      return operand.batch_stride_bytes == 0 ? 1 : batch;
    };
    const bool a_is_across = problem.a.order == Order::kColumnMajor;
    seconds += times(problem.a) * PreparingSeconds(costs, problem.a, a_is_across, 0) +
               times(problem.b) * PreparingSeconds(costs, problem.b, false, kPanelSeconds) +
               batch * (kMatrixSeconds + MultiplyingSeconds(problem, rate));
  }
  const bool is_in_d = problem.d.type == ElementType::kF32;
  if (is_in_d && problem.is_plain() && problem.has_product()) return seconds;
  return seconds + batch * EpilogueSeconds(costs, problem, ElementType::kF32, ElementType::kF32);
}

// DeepGEMM's blocks: 1x128 of A and 128x128 of B.
absl::StatusOr<Problem> Sample(const Kernel& kernel, const Target&) {
  constexpr int64_t kExtent = 256;
  constexpr int64_t kDepth = 128;
  Problem problem;
  problem.m = problem.n = problem.k = kExtent;
  ASSIGN_OR_RETURN(problem.a, TightLayout("a", kernel.a, Order::kRowMajor, kExtent, kExtent));
  ASSIGN_OR_RETURN(problem.b, TightLayout("b", kernel.b, Order::kColumnMajor, kExtent, kExtent));
  ASSIGN_OR_RETURN(problem.d,
                   TightLayout("d", ElementType::kF32, Order::kRowMajor, kExtent, kExtent));
  problem.a_scale = problem.b_scale = ScaleKind::kBlocks;
  problem.a_blocks = {.lines = 1, .depth = kDepth};
  problem.b_blocks = {.lines = kDepth, .depth = kDepth};
  return problem;
}

}  // namespace

const KernelFamily kBlockFamily = {.available = Available,
                                   .supports = Supports,
                                   .workspace_bytes = WorkspaceBytes,
                                   .launch = Launch,
                                   .predicted_seconds = Predict,
                                   .sample = Sample,
                                   .derived = Derived};

}  // namespace gemmd
