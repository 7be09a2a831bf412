// SPDX-License-Identifier: Apache-2.0
#include "kernels/verify/recompute.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "kernels/default_recipe.h"
#include "kernels/dequantize.h"
#include "kernels/epilogue.h"
#include "kernels/matrix/element.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/problem.h"
#include "kernels/verify/element_bound.h"
#include "kernels/verify/sub_product.h"

namespace gemmd::verify {

uint64_t BitsAt(const MatrixLayout& layout, const std::byte* matrix, int64_t row, int64_t column) {
  const bool is_row_major = layout.order == Order::kRowMajor;
  return LoadBits(layout.type, matrix + (is_row_major ? row : column) * layout.line_stride_bytes(),
                  is_row_major ? column : row);
}

namespace {

// The factors of one row of A, or column of B, along k.
struct FactorLine {
  const BlockScale* blocks = nullptr;  // Null: none.
  const std::byte* factors = nullptr;
};

double FactorAt(const FactorLine& line, int64_t k) {
  if (line.blocks == nullptr) return 1;
  const FactorType type = line.blocks->type;
  return DecodeFactor(type, line.factors + k / line.blocks->depth * BytesOf(type));
}

// The accumulator of one row of A and one column of B of a product with factors of blocks, step by
// step as BlockScaling::kParts says (kernels/kernel.h): the reference for CPU rows.
float SumOfParts(absl::Span<const double> a, absl::Span<const double> b, const FactorLine& of_a,
                 const FactorLine& of_b) {
  const auto k = static_cast<int64_t>(a.size());
  float total = 0;
  for (int64_t first = 0; first < k;) {
    const int64_t end = EndOfPart(of_a.blocks, of_b.blocks, first, k);
    float sum = 0;
    for (int64_t p = first; p < end; ++p) {
      const auto at = static_cast<size_t>(p);
      const auto product = static_cast<float>(a[at] * b[at]);
      sum = sum + product;
    }
    const double factor = FactorAt(of_a, first) * FactorAt(of_b, first);
    const auto scaled = static_cast<float>(sum * factor);
    total = total + scaled;
    first = end;
  }
  return total;
}

// The small product of some rows and some columns of one matrix, and its operands.
struct SmallProduct {
  Problem problem;
  PerOperand<std::vector<std::byte>> operands;
  std::vector<std::byte> d;

  GemmArgs Args(const Target& target, absl::Span<std::byte> workspace, AbortFlag abort) {
    return {.problem = problem,
            .target = target,
            .a = operands.a.data(),
            .b = operands.b.data(),
            .c = operands.c.data(),
            .bias = operands.bias.data(),
            .a_scale = scales(OperandRole::kAScale),
            .b_scale = scales(OperandRole::kBScale),
            .d = d.data(),
            .workspace = workspace,
            .abort = abort,
            .a_factors = operands.a_scale.data(),
            .b_factors = operands.b_scale.data()};
  }

  // Those of the epilogue.
  absl::Span<const float> scales(OperandRole role) const {
    const ScaleKind kind = role == OperandRole::kAScale ? problem.a_scale : problem.b_scale;
    if (kind == ScaleKind::kBlocks) return {};
    const std::vector<std::byte>& bytes = operands[role];
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }
};

absl::StatusOr<SmallProduct> Gather(const CheckedProduct& product, int64_t batch, Indices rows,
                                    Indices columns) {
  Problem whole = product.problem;
  const auto factors_of = [&](const BlockScale* blocks, int64_t extent,
                              absl::Span<const std::byte> factors) {
    return blocks == nullptr ? nullptr
                             : factors.data() + batch * blocks->matrix_bytes(extent, whole.k);
  };
  const auto scales_of = [](absl::Span<const float> scales) {
    return reinterpret_cast<const std::byte*>(scales.data());
  };
  PerOperand<const std::byte*> from;
  from.a = product.a.data() + batch * whole.a.batch_stride_bytes;
  from.b = product.b.data() + batch * whole.b.batch_stride_bytes;
  from.c = product.c.data() + batch * whole.c.batch_stride_bytes;
  from.bias = product.bias.data();
  from.a_scale = whole.blocks_of_a() == nullptr
                     ? scales_of(product.a_scale)
                     : factors_of(whole.blocks_of_a(), whole.m, product.a_factors);
  from.b_scale = whole.blocks_of_b() == nullptr
                     ? scales_of(product.b_scale)
                     : factors_of(whole.blocks_of_b(), whole.n, product.b_factors);
  whole.batch = 1;
  SmallProduct small;
  ASSIGN_OR_RETURN(small.problem, SubProblemOf(whole, static_cast<int64_t>(rows.size()),
                                               static_cast<int64_t>(columns.size())));
  for (const OperandRole role : kOperandRoles) {
    ASSIGN_OR_RETURN(const int64_t bytes, OperandBytes(small.problem, role));
    small.operands[role].resize(static_cast<size_t>(bytes));
    for (const ElementGather& gather :
         GathersOf(whole, small.problem, role, {rows.data(), columns.data()}, from[role],
                   small.operands[role].data())) {
      GatherElements(gather);
    }
  }
  small.d.resize(static_cast<size_t>(small.problem.d.batch_stride_bytes));
  return small;
}

// Dequantizes the operands as the kernel does.
absl::Status DequantizeSmall(const Kernel& kernel, SmallProduct& small) {
  if (!Dequantizes(kernel, small.problem)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Dequantization made, DequantizationOf(small.problem, kernel.a));
  const auto dequantize = [&](mma::Operand operand, int64_t bytes, OperandRole role) {
    if (bytes == 0) return;
    std::vector<std::byte> values(static_cast<size_t>(bytes));
    Dequantize(DequantizeJobOf(small.problem, made, operand, small.operands[role].data(),
                               small.operands[ScaleOf(role)].data(), values.data()),
               nullptr);
    small.operands[role] = std::move(values);
  };
  dequantize(mma::Operand::kA, made.a_bytes, OperandRole::kA);
  dequantize(mma::Operand::kB, made.b_bytes, OperandRole::kB);
  small.problem = made.problem;
  return absl::OkStatus();
}

absl::Status Simulate(const Kernel& kernel, const CheckedProduct& product, SmallProduct& small) {
  const Target target = {.kind = DeviceKind::kSim, .chip = product.target.chip};
  ASSIGN_OR_RETURN(const int64_t bytes, kernel.workspace_bytes(small.problem));
  constexpr size_t kAlignment = 64;
  std::vector<std::byte> memory(static_cast<size_t>(bytes) + kAlignment);
  const size_t before = reinterpret_cast<uintptr_t>(memory.data()) % kAlignment;
  std::byte* const workspace = memory.data() + (kAlignment - before) % kAlignment;
  return kernel.launch(small.Args(target, {workspace, static_cast<size_t>(bytes)}, product.abort));
}

// The lines of A or B along k as f64.
std::vector<double> Decoded(const SmallProduct& small, OperandRole role) {
  const MatrixLayout& layout = LayoutOf(small.problem, role);
  const int64_t k = small.problem.k;
  const auto lines = static_cast<size_t>(role == OperandRole::kA ? layout.rows : layout.columns);
  std::vector<std::byte> dense;
  const std::byte* from = small.operands[role].data();
  int64_t line_bytes = layout.line_stride_bytes();
  if (layout.is_sparse()) {
    const SparseLayout sizes =
        SparseLayoutOf("a", layout.type, layout.rows, layout.columns).value();
    dense.resize(static_cast<size_t>(sizes.dense_bytes));
    Expand(sizes, from, dense.data());
    from = dense.data();
    line_bytes = sizes.dense_line_bytes;
  }
  std::vector<double> values(lines * static_cast<size_t>(k));
  for (size_t i = 0; i < lines; ++i) {
    DecodeLine(layout.type, from + static_cast<int64_t>(i) * line_bytes, k,
               values.data() + i * static_cast<size_t>(k));
  }
  return values;
}

// Integers and bits: sums that f64 holds exactly, modulo 2^32 at the end of each part of them.
int32_t ExactSum(const Problem& problem, const double* a, const double* b, AbortFlag abort) {
  constexpr int64_t kPart = 1 << 20;  // Products are below 2^17, so their sums are below 2^37.
  uint32_t sum = 0;
  for (int64_t first = 0; first < problem.k && !IsSet(abort); first += kPart) {
    double part = 0;
    const int64_t end = std::min(problem.k, first + kPart);
    if (problem.a.type == ElementType::kB1 && problem.bit_operation == BitOperation::kXor) {
      for (int64_t p = first; p < end; ++p) part += a[p] != b[p] ? 1 : 0;
    } else {
      for (int64_t p = first; p < end; ++p) part += a[p] * b[p];
    }
    sum += static_cast<uint32_t>(static_cast<int64_t>(part));
  }
  return static_cast<int32_t>(sum);
}

void ComputeExactly(const CheckedProduct& product, SmallProduct& small) {
  const Problem& problem = small.problem;
  std::vector<int32_t> sums(static_cast<size_t>(problem.m * problem.n));
  Accumulators accumulators;
  accumulators.stored = ElementType::kS32;
  accumulators.type = ElementType::kS32;
  accumulators.leading_dimension = problem.n;
  if (problem.has_product()) {
    const std::vector<double> a = Decoded(small, OperandRole::kA);
    const std::vector<double> b = Decoded(small, OperandRole::kB);
    for (int64_t i = 0; i < problem.m; ++i) {
      for (int64_t j = 0; j < problem.n; ++j) {
        sums[static_cast<size_t>(i * problem.n + j)] =
            ExactSum(problem, a.data() + i * problem.k, b.data() + j * problem.k, product.abort);
      }
    }
    accumulators.data = reinterpret_cast<const std::byte*>(sums.data());
  }
  ApplyEpilogue(small.Args({}, {}, product.abort), 0, accumulators);
}

void ComputeParts(const CheckedProduct& product, SmallProduct& small) {
  const Problem& problem = small.problem;
  const auto k = static_cast<size_t>(problem.k);
  std::vector<float> totals(static_cast<size_t>(problem.m * problem.n));
  Accumulators accumulators;
  accumulators.leading_dimension = problem.n;
  const auto line = [&](const BlockScale* blocks, const std::vector<std::byte>& factors,
                        int64_t i) {
    return FactorLine{blocks, blocks == nullptr
                                  ? nullptr
                                  : &factors[static_cast<size_t>(blocks->offset(i, 0, problem.k))]};
  };
  if (problem.has_product()) {
    const std::vector<double> a = Decoded(small, OperandRole::kA);
    const std::vector<double> b = Decoded(small, OperandRole::kB);
    for (int64_t i = 0; i < problem.m; ++i) {
      for (int64_t j = 0; j < problem.n && !IsSet(product.abort); ++j) {
        totals[static_cast<size_t>(i * problem.n + j)] =
            SumOfParts(absl::MakeConstSpan(a).subspan(static_cast<size_t>(i) * k, k),
                       absl::MakeConstSpan(b).subspan(static_cast<size_t>(j) * k, k),
                       line(problem.blocks_of_a(), small.operands.a_scale, i),
                       line(problem.blocks_of_b(), small.operands.b_scale, j));
      }
    }
    accumulators.data = reinterpret_cast<const std::byte*>(totals.data());
  }
  ApplyEpilogue(small.Args({}, {}, product.abort), 0, accumulators);
}

// Compares elements of D with those of the small product.
class Comparison {
 public:
  Comparison(const CheckedProduct& product, int64_t batch, Indices rows, Indices columns,
             CheckResult& result)
      : d_(product.d.data() + batch * product.problem.d.batch_stride_bytes),
        layout_(product.problem.d),
        batch_(batch),
        rows_(rows),
        columns_(columns),
        result_(result) {}

  uint64_t Got(size_t i, size_t j) const { return BitsAt(layout_, d_, rows_[i], columns_[j]); }

  void Add(size_t i, size_t j, bool is_right, uint64_t got, uint64_t want) {
    ++result_.elements_checked;
    if (is_right) return;
    ++result_.wrong_elements;
    result_.end = CheckEnd::kWrong;
    if (!result_.wrong) result_.wrong = WrongElement{batch_, rows_[i], columns_[j], got, want};
  }

  void CompareBits(const SmallProduct& small) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      for (size_t j = 0; j < columns_.size(); ++j) {
        const uint64_t want = BitsAt(small.problem.d, small.d.data(), static_cast<int64_t>(i),
                                     static_cast<int64_t>(j));
        const uint64_t got = Got(i, j);
        // A plain f64 keeps its own NaN, which may have any bits.
        const bool is_nan = layout_.type == ElementType::kF64 &&
                            std::isnan(Decode(layout_.type, got)) &&
                            std::isnan(Decode(layout_.type, want));
        Add(i, j, got == want || is_nan, got, want);
      }
    }
  }

 private:
  const std::byte* const d_;
  const MatrixLayout& layout_;
  const int64_t batch_;
  const Indices rows_;
  const Indices columns_;
  CheckResult& result_;
};

void CompareBounds(const CheckedProduct& product, const SmallProduct& small,
                   Comparison& comparison) {
  const Problem& problem = small.problem;
  const bool reads = problem.has_product();
  const std::vector<double> a = reads ? Decoded(small, OperandRole::kA) : std::vector<double>();
  const std::vector<double> b = reads ? Decoded(small, OperandRole::kB) : std::vector<double>();
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      const auto row = static_cast<size_t>(i);
      const auto column = static_cast<size_t>(j);
      DotProduct dot;
      if (reads) {
        const double* const x = a.data() + i * problem.k;
        const double* const y = b.data() + j * problem.k;
        for (int64_t p = 0; p < problem.k && !IsSet(product.abort); ++p) {
          AddProduct(x[p], y[p], dot);
        }
      }
      EpilogueTerms terms = {.a_scale = ScaleAt(small.scales(OperandRole::kAScale), row),
                             .b_scale = ScaleAt(small.scales(OperandRole::kBScale), column)};
      if (problem.has_c()) {
        terms.c = Decode(problem.c.type, BitsAt(problem.c, small.operands.c.data(), i, j));
      }
      if (problem.bias_axis != BiasAxis::kNone) {
        const int64_t index = problem.bias_axis == BiasAxis::kRows ? i : j;
        terms.bias = Decode(problem.bias_type,
                            LoadBits(problem.bias_type, small.operands.bias.data(), index));
      }
      const BoundedElement element = BoundOf(product.kernel.recipe, problem, dot, terms);
      const bool hides_nan = std::isnan(element.value) && IsFloat(problem.d.type) &&
                             !FactsOf(problem.d.type).format.has_nan;
      if (!element.is_decidable || hides_nan) continue;
      const uint64_t got = comparison.Got(row, column);
      uint64_t nearest = 0;
      const bool is_right = IsWithin(problem.d.type, got, element, nearest);
      comparison.Add(row, column, is_right, got, nearest);
    }
  }
}

absl::Status CheckBlock(const CheckedProduct& product, int64_t batch, Indices rows, Indices columns,
                        CheckResult& result) {
  ASSIGN_OR_RETURN(SmallProduct small, Gather(product, batch, rows, columns));
  RETURN_IF_ERROR(DequantizeSmall(product.kernel, small));
  Comparison comparison(product, batch, rows, columns, result);
  if (const Kernel* const simulated = SimulatedKernel(product.kernel)) {
    RETURN_IF_ERROR(Simulate(*simulated, product, small));
    comparison.CompareBits(small);
  } else if (product.kernel.recipe.exact) {
    ComputeExactly(product, small);
    comparison.CompareBits(small);
  } else if (product.kernel.recipe.block_scaling == BlockScaling::kParts) {
    ComputeParts(product, small);
    comparison.CompareBits(small);
  } else {
    CompareBounds(product, small, comparison);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CanRecompute(const Kernel& kernel) {
  const bool is_known = SimulatedKernel(kernel) != nullptr || kernel.recipe.exact ||
                        kernel.device_kind == DeviceKind::kCpu;
  if (is_known) return absl::OkStatus();
  return absl::UnimplementedError(
      Concat("verify.mode: nothing computes elements of ", kernel.name, " again"));
}

int64_t RecomputeBytes(const Problem& problem, int64_t rows, int64_t columns) {
  // Both operands as f64 and unconverted, some 40 MiB of the simulator for tiles (sim/rows.cc), and
  // the block's part of C and D.
  constexpr int64_t kTiles = int64_t{2} << 20;
  const int64_t lines = std::min(rows, kMaxLines) + std::min(columns, kMaxLines);
  return kTiles + lines * 16 * problem.k + kMaxLines * kMaxLines * 32;
}

int64_t Recomputation::SliceOf(const Kernel& kernel) {
  return int64_t{1} << (SimulatedKernel(kernel) != nullptr ? 26 : 23);
}

int64_t LinesAtOnce(const Kernel& kernel, int64_t k) {
  const int64_t elements = Recomputation::SliceOf(kernel) / std::max<int64_t>(1, k);
  const auto lines = static_cast<int64_t>(std::sqrt(static_cast<double>(elements)));
  // Whole tiles of the simulator, if there are several.
  return std::clamp<int64_t>(lines >= 64 ? lines / 64 * 64 : lines, 1, kMaxLines);
}

absl::StatusOr<bool> Recomputation::Continue(int64_t& left, CheckResult& result) {
  constexpr int64_t kOfBlock = 4'096;  // What else a block takes.
  const auto lines = static_cast<size_t>(LinesAtOnce(product_.kernel, product_.problem.k));
  while (row_ < rows_.size() && column_ < columns_.size()) {
    if (IsSet(product_.abort)) return AbortedLaunch();
    if (left <= 0) return false;
    const Indices rows = Indices(rows_).subspan(row_, lines);
    const Indices columns = Indices(columns_).subspan(column_, lines);
    const absl::Status status =
        OrNoMemory("verify: no memory for the rows that are computed again",
                   [&] { return CheckBlock(product_, batch_, rows, columns, result); });
    RETURN_IF_ERROR(status);
    left -= kOfBlock + static_cast<int64_t>(rows.size() * columns.size()) * product_.problem.k;
    column_ += lines;
    if (column_ < columns_.size()) continue;
    column_ = 0;
    row_ += lines;
  }
  if (IsSet(product_.abort)) return AbortedLaunch();
  return true;
}

absl::Status Recompute(const CheckedProduct& product, int64_t batch, Indices rows, Indices columns,
                       CheckResult& result) {
  int64_t left = std::numeric_limits<int64_t>::max();
  return Recomputation(product, batch, {rows.begin(), rows.end()}, {columns.begin(), columns.end()})
      .Continue(left, result)
      .status();
}

absl::StatusOr<CheckResult> Complete(std::unique_ptr<SlicedCheck> check) {
  bool has_ended = false;
  while (!has_ended) {
    ASSIGN_OR_RETURN(has_ended, check->Continue());
  }
  return check->result();
}

}  // namespace gemmd::verify
