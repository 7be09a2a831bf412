// SPDX-License-Identifier: Apache-2.0
//
// The rows with block factors: operands are widened to f32 in the workspace, in the layout of
// strips (block_sums.h).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "kernels/cpu/block_sums.h"
#include "kernels/cpu/host.h"
#include "kernels/cpu/rows.h"
#include "kernels/device_profile.h"
#include "kernels/epilogue.h"
#include "kernels/kernel.h"
#include "kernels/matrix/abort.h"
#include "kernels/matrix/abortable_loop.h"
#include "kernels/matrix/element.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/problem.h"

namespace gemmd {
namespace {

// Byte offsets in the workspace, which holds one matrix of the batch.
struct BlockPlan {
  int64_t dense_a = 0;    // A expanded, if it is sparse.
  int64_t a = 0;          // m lines of k floats.
  int64_t b = 0;          // For each panel of columns, k lines of a panel's floats.
  int64_t a_factors = 0;  // For each block of rows, a float for each block of k.
  int64_t b_factors = 0;  // For each panel of columns, a line of floats for each block of k.
  int64_t totals = 0;     // D in f32, in its own order, if its type is not f32.
  int64_t bytes = 0;
};

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kAlignment = 64;

// Elements that are decoded at once; whole bytes of any type.
constexpr int64_t kChunk = 512;

// Allocates consecutive parts of the workspace.
class Places {
 public:
  int64_t Take(Checked bytes) {
    const int64_t at = end_.value().value_or(0);
    const Checked padded = end_ + bytes + Checked(kAlignment - 1);
    end_ = padded.value() ? Checked(*padded.value() / kAlignment * kAlignment) : padded;
    return at;
  }
  Checked end() const { return end_; }

 private:
  Checked end_ = Checked(0);
};

// Calls store(index, value) for every element of a line, until the flag is set.
template <typename Store>
void DecodeEach(const MatrixLayout& layout, const std::byte* matrix, int64_t line, AbortFlag abort,
                const Store& store) {
  float values[kChunk];
  const std::byte* const start = matrix + line * layout.line_stride_bytes();
  for (int64_t first = 0; first < layout.line_length() && !IsSet(abort); first += kChunk) {
    const int64_t count = std::min(kChunk, layout.line_length() - first);
    DecodeLine(layout.type, start + first * BitsOf(layout.type) / 8, count, values);
    for (int64_t i = 0; i < count; ++i) store(first + i, values[i]);
  }
}

int64_t PanelsOf(const Problem& problem) {
  return problem.n / kPanelColumns + (problem.n % kPanelColumns != 0);
}

// Errors: ResourceExhausted if the workspace would take 2^63 bytes or more.
absl::StatusOr<BlockPlan> PlanBlocks(const Problem& problem) {
  BlockPlan plan;
  if (!problem.has_output() || !problem.has_product()) return plan;
  Places places;
  const Checked depth(problem.k);
  const Checked panel_bytes = Checked(PanelsOf(problem)) * Checked(kPanelColumns * kFloatBytes);
  if (problem.a.is_sparse()) {
    ASSIGN_OR_RETURN(const SparseLayout sparse,
                     SparseLayoutOf("a", problem.a.type, problem.m, problem.k));
    plan.dense_a = places.Take(sparse.dense_bytes);
  }
  plan.a = places.Take(Checked(problem.m) * depth * Checked(kFloatBytes));
  plan.b = places.Take(panel_bytes * depth);
  if (const BlockScale* const blocks = problem.blocks_of_a()) {
    plan.a_factors = places.Take(Checked(blocks->line_blocks(problem.m)) *
                                 Checked(blocks->depth_blocks(problem.k)) * Checked(kFloatBytes));
  }
  if (const BlockScale* const blocks = problem.blocks_of_b()) {
    plan.b_factors = places.Take(panel_bytes * Checked(blocks->depth_blocks(problem.k)));
  }
  if (problem.d.type != ElementType::kF32) {
    plan.totals = places.Take(Checked(problem.m) * Checked(problem.n) * Checked(kFloatBytes));
  }
  if (!places.end().value()) {
    return absl::ResourceExhaustedError(
        GotWant("workspace", "more than 2^63 bytes", "operands that fit memory when widened"));
  }
  plan.bytes = *places.end().value();
  return plan;
}

// The dense layout of A, expanded if necessary.
MatrixLayout DenseLayoutOf(const MatrixLayout& layout) {
  if (!layout.is_sparse()) return layout;
  return TightLayout("a", layout.type, Order::kRowMajor, layout.rows, layout.columns).value();
}

// Each of these four functions writes its part of the workspace for one matrix, or less if aborted.
// Threads: parallel inside, on the calling thread's OpenMP threads, if `is_shared`.
void WidenA(const MatrixLayout& layout, const std::byte* matrix, float* lines, bool is_shared,
            AbortFlag abort) {
  const int64_t k = layout.columns;
  const bool is_by_rows = layout.order == Order::kRowMajor;
  ForEachUnlessAborted(abort, is_shared, layout.lines(), [&](int64_t line) {
    DecodeEach(layout, matrix, line, abort, [&](int64_t index, float value) {
      lines[is_by_rows ? line * k + index : index * k + line] = value;
    });
  });
}

void WidenB(const MatrixLayout& layout, const std::byte* matrix, float* panels, bool is_shared,
            AbortFlag abort) {
  const int64_t k = layout.rows;
  const int64_t n = layout.columns;
  const bool is_by_rows = layout.order == Order::kRowMajor;
  const auto place = [&](int64_t depth, int64_t column) -> float& {
    return panels[(column / kPanelColumns * k + depth) * kPanelColumns + column % kPanelColumns];
  };
  ForEachUnlessAborted(abort, is_shared, layout.lines(), [&](int64_t line) {
    DecodeEach(layout, matrix, line, abort, [&](int64_t index, float value) {
      (is_by_rows ? place(line, index) : place(index, line)) = value;
    });
  });
  // Clears columns beyond the matrix, so that old data there is not used.
  if (n % kPanelColumns == 0) return;
  float* const last = panels + n / kPanelColumns * k * kPanelColumns;
  for (int64_t depth = 0; depth < k && !IsSet(abort); ++depth) {
    std::fill(last + depth * kPanelColumns + n % kPanelColumns, last + (depth + 1) * kPanelColumns,
              0.0F);
  }
}

void DecodeFactorsOfA(const Problem& problem, const std::byte* factors, float* decoded,
                      AbortFlag abort) {
  const BlockScale& blocks = problem.a_blocks;
  const int64_t count = blocks.line_blocks(problem.m) * blocks.depth_blocks(problem.k);
  for (int64_t i = 0; i < count && !IsSet(abort); ++i) {
    decoded[i] = DecodeFactor(blocks.type, factors + i * BytesOf(blocks.type));
  }
}

void DecodeFactorsOfB(const Problem& problem, const std::byte* factors, float* decoded,
                      AbortFlag abort) {
  const BlockScale& blocks = problem.b_blocks;
  const int64_t depth_blocks = blocks.depth_blocks(problem.k);
  for (int64_t column = 0; column < PanelsOf(problem) * kPanelColumns; ++column) {
    float* const to =
        decoded + column / kPanelColumns * depth_blocks * kPanelColumns + column % kPanelColumns;
    const std::byte* const line = factors + std::min(column, problem.n - 1) / blocks.lines *
                                                depth_blocks * BytesOf(blocks.type);
    for (int64_t block = 0; block < depth_blocks && !IsSet(abort); ++block) {
      to[block * kPanelColumns] = DecodeFactor(blocks.type, line + block * BytesOf(blocks.type));
    }
  }
}

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

  // Data shared by all matrices is kept in the workspace.
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

  // Memory of the form, or its part of the workspace.
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

  // Rows beyond the matrix are computed from its last row, and not stored.
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

// The widened operand. The workspace holds one matrix at a time, so a batch has none.
absl::StatusOr<DerivedOperand> Derived(const Kernel&, const Problem& problem,
                                       mma::Operand operand) {
  constexpr uint32_t kLinesOfA = 1u << 24;
  constexpr uint32_t kPanelsOfB = 2u << 24;
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

// The max number of parts of k.
double PartsOf(const Problem& problem) {
  double parts = 0;
  for (const BlockScale* const blocks : {problem.blocks_of_a(), problem.blocks_of_b()}) {
    if (blocks != nullptr) parts += static_cast<double>(blocks->depth_blocks(problem.k));
  }
  return std::clamp(parts, 1.0, static_cast<double>(std::max<int64_t>(problem.k, 1)));
}

// Predicts the time to widen an operand of one matrix element by element, with constants of an
// Intel Xeon with AVX-512. Lines of A that run across those of the strips are the most expensive.
double PreparingSeconds(const HostCosts& costs, const MatrixLayout& operand, bool is_across,
                        double element_seconds) {
  constexpr double kAcrossSeconds = 7e-9;  // If it does not fit a cache.
  constexpr double kCachedBytes = 2 * 1024 * 1024;
  double seconds = WideningSeconds(costs, DenseLayoutOf(operand), ElementType::kF32);
  if (operand.is_sparse()) seconds += ExpansionSeconds(costs, operand);
  const double elements = ElementsOf(operand, 1);
  seconds += elements * element_seconds;
  if (is_across && elements * sizeof(float) > kCachedBytes) seconds += elements * kAcrossSeconds;
  return seconds;
}

// Whole strips and panels are computed. Scaling a part's sum takes about eight times as long as a
// multiplication, and each strip has an overhead.
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
  constexpr double kMatrixSeconds = 0.5e-6;  // Overhead of three loops.
  constexpr double kPanelSeconds = 0.45e-9;  // Placing an element in a panel.
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
