// SPDX-License-Identifier: Apache-2.0
#include "kernels/dequantize.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/rows.h"
#include "kernels/cuda/weights.h"
#include "kernels/device_profile.h"
#include "kernels/matrix/abortable_loop.h"
#include "kernels/matrix/element.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int64_t kLineElements = 8;  // Lines are whole chunks of 16 bytes.
constexpr int64_t kOperandAlignment = 256;

bool IsHalf(ElementType type) { return type == ElementType::kF16 || type == ElementType::kBf16; }
bool IsNarrow(ElementType type) { return BitsOf(type) <= 8 && type != ElementType::kB1; }

bool HasF32Factors(const BlockScale* blocks) {
  return blocks != nullptr && blocks->type == FactorType::kF32;
}

// The matrices of an operand that differ after dequantization.
int64_t MatricesOf(const MatrixLayout& layout, const BlockScale* blocks, int64_t batch) {
  const bool is_shared =
      layout.batch_stride_bytes == 0 && (blocks == nullptr || !blocks->per_matrix);
  return is_shared ? 1 : batch;
}

// Sets the layout to that of the dequantized operand, and returns its bytes.
absl::StatusOr<int64_t> Widen(MatrixLayout& layout, ElementType to, const BlockScale* blocks,
                              bool is_read, int64_t batch) {
  constexpr int64_t kMaxLength = INT64_MAX - kLineElements;
  const int64_t matrices = MatricesOf(layout, blocks, batch);
  if (!is_read) {
    layout.type = to;
    return 0;
  }
  if (layout.line_length() > kMaxLength) {
    return absl::ResourceExhaustedError("workspace: more than 2^63 bytes");
  }
  const int64_t length = (layout.line_length() + kLineElements - 1) / kLineElements * kLineElements;
  const Checked matrix = Checked(length) * Checked(kElementBytes) * Checked(layout.lines());
  const std::optional<int64_t> all =
      (matrix * Checked(matrices) + Checked(kOperandAlignment - 1)).value();
  if (!all) return absl::ResourceExhaustedError("workspace: more than 2^63 bytes");
  layout.type = to;
  layout.leading_dimension = length;
  layout.batch_stride_bytes = matrices == 1 && batch != 1 ? 0 : *matrix.value();
  return *all / kOperandAlignment * kOperandAlignment;
}

void DequantizeLine(const DequantizeJob& job, const std::byte* source, const std::byte* factors,
                    int64_t line, std::byte* target) {
  constexpr int64_t kChunk = 512;  // Whole bytes of any type.
  float values[kChunk];
  const int64_t factor_bytes = BytesOf(job.factor_type);
  const int64_t of_line = line / job.lines_of_block * job.factors_of_line;
  for (int64_t first = 0; first < job.length; first += kChunk) {
    const int64_t count = std::min(kChunk, job.length - first);
    DecodeLine(job.from, source + first * BitsOf(job.from) / 8, count, values);
    for (int64_t i = 0; i < count && factors != nullptr;) {
      const int64_t block = (first + i) / job.elements_of_block;
      const float factor = DecodeFactor(
          job.factor_type, factors + (of_line + block * job.factors_of_element) * factor_bytes);
      const int64_t left = job.elements_of_block - (first + i) % job.elements_of_block;
      const int64_t end = left < count - i ? i + left : count;
      for (; i < end; ++i) values[i] *= factor;
    }
    EncodeLine(job.to, values, count, target + first * kElementBytes);
  }
  std::fill(target + job.length * kElementBytes, target + job.target_line_stride, std::byte{0});
}

// The time to dequantize an operand that no earlier launch did.
double SecondsOf(const MatrixLayout& given, int64_t bytes, int64_t batch,
                 const DeviceProfile& profile) {
  if (bytes == 0) return 0;
  const double elements = ElementsOf(given, batch);
  if (profile.target.kind != DeviceKind::kCuda) {
    return elements / profile.converted_elements_per_second;
  }
  constexpr double kLaunchSeconds = 2.5e-6;
  const double read = elements * BitsOf(given.type) / 8;
  const double bandwidth = profile.memory_bytes_per_second;
  return kLaunchSeconds + (bandwidth > 0 ? (read + static_cast<double>(bytes)) / bandwidth : 0);
}

}  // namespace

std::optional<ElementType> DequantizedType(const Problem& problem) {
  const ElementType a = problem.a.type;
  const ElementType b = problem.b.type;
  if (IsHalf(a) && IsNarrow(b)) return a;
  if (!IsNarrow(a) || problem.a.is_sparse()) return std::nullopt;
  if (IsHalf(b)) return b;
  if (!IsNarrow(b) || IsInteger(a) || IsInteger(b)) return std::nullopt;
  if (HasF32Factors(problem.blocks_of_a()) || HasF32Factors(problem.blocks_of_b())) {
    return std::nullopt;
  }
  return ElementType::kBf16;
}

bool Dequantizes(const Kernel& kernel, const Problem& problem) {
  if (kernel.a != kernel.b || !IsHalf(kernel.a)) return false;
  if (kernel.a != DequantizedType(problem)) return false;
  const bool are_both_narrow = IsNarrow(problem.a.type) && IsNarrow(problem.b.type);
  return !are_both_narrow || kernel.device_kind != DeviceKind::kCpu;
}

absl::StatusOr<Dequantization> DequantizationOf(const Problem& problem, ElementType type) {
  Dequantization result{.problem = problem};
  Problem& made = result.problem;
  const bool is_read = problem.has_output() && problem.has_product();
  if (IsNarrow(problem.a.type)) {
    made.a_stays = false;  // What is packed from a dequantized operand is not kept.
    ASSIGN_OR_RETURN(result.a_bytes,
                     Widen(made.a, type, problem.blocks_of_a(), is_read, problem.batch));
  }
  if (IsNarrow(problem.b.type)) {
    made.b_stays = false;
    ASSIGN_OR_RETURN(result.b_bytes,
                     Widen(made.b, type, problem.blocks_of_b(), is_read, problem.batch));
  }
  if (made.a_scale == ScaleKind::kBlocks) made.a_scale = ScaleKind::kNone;
  if (made.b_scale == ScaleKind::kBlocks) made.b_scale = ScaleKind::kNone;
  if (!(Checked(result.a_bytes) + Checked(result.b_bytes)).value()) {
    return absl::ResourceExhaustedError("workspace: more than 2^63 bytes");
  }
  return result;
}

absl::StatusOr<Dequantization> DequantizationBy(const Kernel& kernel, const Problem& problem) {
  const CudaRow* const row = CudaRowOf(kernel);
  std::optional<WeightsMultiplication> weights;
  if (row != nullptr) weights = WeightsMultiplicationOf(*row, problem);
  if (!weights) return DequantizationOf(problem, kernel.a);
  Dequantization result{.problem = weights->dequantized, .packs_weights = true};
  (weights->weights == mma::Operand::kA ? result.a_bytes : result.b_bytes) =
      (weights->plan.bytes() + kOperandAlignment - 1) / kOperandAlignment * kOperandAlignment;
  return result;
}

DequantizeJob DequantizeJobOf(const Problem& problem, const Dequantization& dequantization,
                              mma::Operand operand, const std::byte* source,
                              const std::byte* factors, std::byte* target) {
  const bool is_a = operand == mma::Operand::kA;
  const MatrixLayout& from = is_a ? problem.a : problem.b;
  const MatrixLayout& to = is_a ? dequantization.problem.a : dequantization.problem.b;
  const BlockScale* const blocks = is_a ? problem.blocks_of_a() : problem.blocks_of_b();
  const int64_t source_bytes = BytesOf("", from, problem.batch).value_or(ByteCount{}).least;
  DequantizeJob job = {.source = source,
                       .source_end = source + source_bytes,
                       .target = target,
                       .from = from.type,
                       .to = to.type,
                       .matrices = to.batch_stride_bytes == 0 ? 1 : problem.batch,
                       .lines = from.lines(),
                       .length = from.line_length(),
                       .source_line_stride = from.line_stride_bytes(),
                       .source_batch_stride = from.batch_stride_bytes,
                       .target_line_stride = to.line_stride_bytes(),
                       .target_batch_stride = to.batch_stride_bytes};
  if (blocks == nullptr) return job;
  const int64_t extent = is_a ? problem.m : problem.n;
  const bool runs_along_k = is_a == (from.order == Order::kRowMajor);
  job.factors = factors;
  job.factor_type = blocks->type;
  job.factors_batch_stride = blocks->matrix_bytes(extent, problem.k);
  job.lines_of_block = runs_along_k ? blocks->lines : blocks->depth;
  job.elements_of_block = runs_along_k ? blocks->depth : blocks->lines;
  const int64_t of_line = blocks->depth_blocks(problem.k);
  job.factors_of_line = runs_along_k ? of_line : 1;
  job.factors_of_element = runs_along_k ? 1 : of_line;
  return job;
}

void Dequantize(const DequantizeJob& job, AbortFlag abort) {
  constexpr int64_t kParallelElements = 128 * 1024;  // As for Widen (cpu/widen.cc).
  const int64_t lines = job.matrices * job.lines;
  const bool is_shared = lines >= kParallelElements / std::max<int64_t>(job.length, 1);
  ForEachUnlessAborted(abort, is_shared, lines, [&](int64_t i) {
    const int64_t matrix = i / job.lines;
    const int64_t line = i % job.lines;
    const std::byte* const source =
        job.source + matrix * job.source_batch_stride + line * job.source_line_stride;
    const std::byte* const factors =
        job.factors == nullptr ? nullptr : job.factors + matrix * job.factors_batch_stride;
    std::byte* const target =
        job.target + matrix * job.target_batch_stride + line * job.target_line_stride;
    DequantizeLine(job, source, factors, line, target);
  });
}

absl::StatusOr<DequantizedProduct> DequantizedProductOf(const GemmArgs& args,
                                                        const Dequantization& dequantization) {
  std::byte* next = args.workspace.data();
  const auto take = [&next](const OperandForm& form, int64_t bytes) {
    return form.bytes != nullptr ? form.bytes : std::exchange(next, next + bytes);
  };
  const bool makes_a = dequantization.a_bytes > 0;
  const bool makes_b = dequantization.b_bytes > 0;
  DequantizedProduct product;
  if (makes_a) product.a = take(args.a_form, dequantization.a_bytes);
  if (makes_b) product.b = take(args.b_form, dequantization.b_bytes);
  const auto given = static_cast<int64_t>(args.workspace.size());
  const int64_t used = next - args.workspace.data();
  if (used > given) {
    return absl::InternalError(GotWant("workspace", Concat(given, " bytes"), Concat(used)));
  }
  product.args.emplace(GemmArgs{.problem = dequantization.problem,
                                .target = args.target,
                                .a = makes_a ? product.a : args.a,
                                .b = makes_b ? product.b : args.b,
                                .c = args.c,
                                .bias = args.bias,
                                .a_scale = args.a_scale,
                                .b_scale = args.b_scale,
                                .d = args.d,
                                .workspace = args.workspace.subspan(static_cast<size_t>(used)),
                                .abort = args.abort,
                                .abort_word = args.abort_word,
                                .a_form = makes_a ? OperandForm() : args.a_form,
                                .b_form = makes_b ? OperandForm() : args.b_form});
  if (args.a_form.is_made) product.a = nullptr;
  if (args.b_form.is_made) product.b = nullptr;
  return product;
}

absl::Status SupportsDequantized(const Kernel& kernel, const Problem& problem) {
  ASSIGN_OR_RETURN(const Dequantization made, DequantizationBy(kernel, problem));
  return kernel.supports(made.problem);
}

absl::StatusOr<int64_t> DequantizedWorkspaceBytes(const Kernel& kernel, const Problem& problem) {
  ASSIGN_OR_RETURN(const Dequantization made, DequantizationBy(kernel, problem));
  ASSIGN_OR_RETURN(const int64_t bytes, kernel.workspace_bytes(made.problem));
  const std::optional<int64_t> all = (Checked(bytes) + Checked(made.bytes())).value();
  if (!all) return absl::ResourceExhaustedError("workspace: more than 2^63 bytes");
  return *all;
}

double DequantizedSeconds(const Kernel& kernel, const Problem& problem,
                          const DeviceProfile& profile, double rate) {
  const absl::StatusOr<Dequantization> made = DequantizationBy(kernel, problem);
  if (!made.ok()) return 0;
  const auto of = [&](const MatrixLayout& given, int64_t bytes, const BlockScale* blocks,
                      bool stays, bool factors_stay) {
    const bool is_kept = stays && (blocks == nullptr || factors_stay);
    return is_kept ? 0 : SecondsOf(given, bytes, problem.batch, profile);
  };
  return of(problem.a, made->a_bytes, problem.blocks_of_a(), problem.a_stays,
            problem.a_factors_stay) +
         of(problem.b, made->b_bytes, problem.blocks_of_b(), problem.b_stays,
            problem.b_factors_stay) +
         (made->packs_weights ? PredictedWeightsSeconds(*CudaRowOf(kernel), problem, profile)
                              : kernel.predicted_seconds(made->problem, profile, rate));
}

absl::StatusOr<DerivedOperand> DequantizedOperand(const Kernel& kernel, const Problem& problem,
                                                  mma::Operand operand) {
  // Unlike the numbers of other forms (cuda/rows.cc, cpu/launch.cc, cpu/block_launch.cc).
  constexpr uint32_t kForm = uint32_t{1} << 29;
  ASSIGN_OR_RETURN(const Dequantization made, DequantizationBy(kernel, problem));
  const bool is_a = operand == mma::Operand::kA;
  const int64_t bytes = is_a ? made.a_bytes : made.b_bytes;
  if (bytes > 0) {
    // Packed weights have k along their lines, which run in another direction in A than in B.
    constexpr uint32_t kPacked = 256;
    constexpr uint32_t kPackedOfB = 512;
    const uint32_t form = kForm | (!made.packs_weights ? static_cast<uint32_t>(kernel.a)
                                   : is_a              ? kPacked
                                                       : kPackedOfB);
    // Factors that come with a product do not stay with the operand.
    const bool has_factors = (is_a ? problem.blocks_of_a() : problem.blocks_of_b()) != nullptr;
    if (has_factors && !(is_a ? problem.a_factors_stay : problem.b_factors_stay)) {
      return DerivedOperand();
    }
    return DerivedOperand{.offset = is_a ? 0 : made.a_bytes, .bytes = bytes, .form = form};
  }
  ASSIGN_OR_RETURN(DerivedOperand derived, kernel.derived(made.problem, operand));
  derived.offset += made.bytes();
  return derived;
}

absl::Status LaunchDequantized(const Kernel& kernel, const GemmArgs& args) {
  const Problem& problem = args.problem;
  ASSIGN_OR_RETURN(const Dequantization made, DequantizationOf(problem, kernel.a));
  ASSIGN_OR_RETURN(const DequantizedProduct product, DequantizedProductOf(args, made));
  if (product.a != nullptr) {
    Dequantize(DequantizeJobOf(problem, made, mma::Operand::kA, args.a, args.a_factors, product.a),
               args.abort);
  }
  if (product.b != nullptr) {
    Dequantize(DequantizeJobOf(problem, made, mma::Operand::kB, args.b, args.b_factors, product.b),
               args.abort);
  }
  if (IsAborted(args)) return AbortedLaunch();
  return kernel.launch(*product.args);
}

}  // namespace gemmd
