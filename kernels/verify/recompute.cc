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

namespace gemmd::verify {
namespace {

MatrixLayout TightLines(const MatrixLayout& from, Order order, int64_t rows, int64_t columns) {
  MatrixLayout layout = from;
  layout.order = order;
  layout.rows = rows;
  layout.columns = columns;
  layout.leading_dimension = layout.line_length();
  layout.batch_stride_bytes = layout.lines() * layout.line_stride_bytes();
  return layout;
}

// Copies lines out of a matrix. `is_along`: whether they are also lines of the matrix in memory.
void GatherLines(const MatrixLayout& layout, const std::byte* matrix, Indices lines, bool is_along,
                 GatheredMatrix& to) {
  const auto stride = static_cast<size_t>(to.layout.line_stride_bytes());
  to.bytes.resize(lines.size() * stride);
  const int64_t length = to.layout.line_length();
  const int bits = BitsOf(layout.type);
  const auto element_bytes = static_cast<size_t>(bits / 8);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::byte* const line = to.bytes.data() + i * stride;
    if (is_along) {
      std::memcpy(line, matrix + lines[i] * layout.line_stride_bytes(), stride);
      continue;
    }
    for (int64_t p = 0; p < length; ++p) {
      const std::byte* const from = matrix + p * layout.line_stride_bytes();
      if (bits % 8 == 0) {
        std::memcpy(line + static_cast<size_t>(p) * element_bytes,
                    from + static_cast<size_t>(lines[i]) * element_bytes, element_bytes);
      } else {
        StoreBits(layout.type, line, p, LoadBits(layout.type, from, lines[i]));
      }
    }
  }
}

GatheredMatrix GatherSparseRows(const MatrixLayout& layout, const std::byte* matrix, Indices rows) {
  GatheredMatrix to;
  to.layout = layout;
  to.layout.rows = static_cast<int64_t>(rows.size());
  const SparseLayout all = SparseLayoutOf("a", layout.type, layout.rows, layout.columns).value();
  const SparseLayout some =
      SparseLayoutOf("a", layout.type, to.layout.rows, layout.columns).value();
  to.layout.batch_stride_bytes = some.bytes;
  to.bytes.resize(static_cast<size_t>(some.bytes));
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    std::memcpy(to.bytes.data() + some.values_offset(row), matrix + all.values_offset(rows[i]),
                static_cast<size_t>(some.value_line_bytes));
    std::memcpy(to.bytes.data() + some.indices_offset(row), matrix + all.indices_offset(rows[i]),
                static_cast<size_t>(some.index_line_bytes));
  }
  return to;
}

}  // namespace

GatheredMatrix GatherRows(const MatrixLayout& layout, const std::byte* matrix, Indices rows) {
  if (layout.is_sparse()) return GatherSparseRows(layout, matrix, rows);
  GatheredMatrix to;
  to.layout =
      TightLines(layout, Order::kRowMajor, static_cast<int64_t>(rows.size()), layout.columns);
  GatherLines(layout, matrix, rows, layout.order == Order::kRowMajor, to);
  return to;
}

GatheredMatrix GatherColumns(const MatrixLayout& layout, const std::byte* matrix, Indices columns) {
  GatheredMatrix to;
  to.layout =
      TightLines(layout, Order::kColumnMajor, layout.rows, static_cast<int64_t>(columns.size()));
  GatherLines(layout, matrix, columns, layout.order == Order::kColumnMajor, to);
  return to;
}

uint64_t BitsAt(const MatrixLayout& layout, const std::byte* matrix, int64_t row, int64_t column) {
  const bool is_row_major = layout.order == Order::kRowMajor;
  return LoadBits(layout.type, matrix + (is_row_major ? row : column) * layout.line_stride_bytes(),
                  is_row_major ? column : row);
}

std::vector<std::byte> GatherVector(ElementType type, const std::byte* vector, Indices indices) {
  const auto bits = static_cast<size_t>(BitsOf(type));
  std::vector<std::byte> to((indices.size() * bits + 7) / 8);
  for (size_t i = 0; i < indices.size(); ++i) {
    StoreBits(type, to.data(), static_cast<int64_t>(i), LoadBits(type, vector, indices[i]));
  }
  return to;
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

// The small product of some rows and some columns of one matrix.
struct SmallProduct {
  Problem problem;
  GatheredMatrix a;
  GatheredMatrix b;
  GatheredMatrix c;
  std::vector<std::byte> bias;
  std::vector<float> a_scale;
  std::vector<float> b_scale;
  std::vector<std::byte> a_factors;  // A line of factors for each row.
  std::vector<std::byte> b_factors;
  std::vector<std::byte> d;

  GemmArgs Args(const Target& target, absl::Span<std::byte> workspace, AbortFlag abort) {
    return {.problem = problem,
            .target = target,
            .a = a.bytes.data(),
            .b = b.bytes.data(),
            .c = c.bytes.data(),
            .bias = bias.data(),
            .a_scale = a_scale,
            .b_scale = b_scale,
            .d = d.data(),
            .workspace = workspace,
            .abort = abort,
            .a_factors = a_factors.data(),
            .b_factors = b_factors.data()};
  }
};

std::vector<float> GatherScales(absl::Span<const float> scales, Indices indices) {
  if (scales.size() <= 1) return {scales.begin(), scales.end()};
  std::vector<float> gathered;
  gathered.reserve(indices.size());
  for (const int64_t index : indices) gathered.push_back(scales[static_cast<size_t>(index)]);
  return gathered;
}

// Copies the factor lines of some rows or columns, one line each.
std::vector<std::byte> GatherFactors(absl::Span<const std::byte> factors, int64_t extent, int64_t k,
                                     int64_t batch, Indices indices, BlockScale& blocks) {
  const std::byte* const matrix = factors.data() + batch * blocks.matrix_bytes(extent, k);
  const int64_t line_bytes = blocks.depth_blocks(k) * BytesOf(blocks.type);
  std::vector<std::byte> gathered;
  gathered.reserve(indices.size() * static_cast<size_t>(line_bytes));
  for (const int64_t index : indices) {
    const std::byte* const line = matrix + blocks.offset(index, 0, k);
    gathered.insert(gathered.end(), line, line + line_bytes);
  }
  blocks.lines = 1;
  blocks.per_matrix = false;
  return gathered;
}

absl::StatusOr<SmallProduct> Gather(const CheckedProduct& product, int64_t batch, Indices rows,
                                    Indices columns) {
  const Problem& whole = product.problem;
  SmallProduct small;
  Problem& problem = small.problem;
  problem = whole;
  problem.m = static_cast<int64_t>(rows.size());
  problem.n = static_cast<int64_t>(columns.size());
  problem.batch = 1;
  if (whole.has_product()) {
    small.a = GatherRows(whole.a, product.a.data() + batch * whole.a.batch_stride_bytes, rows);
    small.b =
        GatherColumns(whole.b, product.b.data() + batch * whole.b.batch_stride_bytes, columns);
    problem.a = small.a.layout;
    problem.b = small.b.layout;
    small.a_scale = GatherScales(product.a_scale, rows);
    small.b_scale = GatherScales(product.b_scale, columns);
    if (whole.blocks_of_a() != nullptr) {
      small.a_factors =
          GatherFactors(product.a_factors, whole.m, whole.k, batch, rows, problem.a_blocks);
    }
    if (whole.blocks_of_b() != nullptr) {
      small.b_factors =
          GatherFactors(product.b_factors, whole.n, whole.k, batch, columns, problem.b_blocks);
    }
  }
  if (whole.has_c()) {
    const GatheredMatrix lines =
        GatherRows(whole.c, product.c.data() + batch * whole.c.batch_stride_bytes, rows);
    // Selects columns from the gathered rows; the result is row major.
    const GatheredMatrix crossed = GatherColumns(lines.layout, lines.bytes.data(), columns);
    small.c = crossed;
    problem.c = small.c.layout;
  }
  if (whole.bias_axis != BiasAxis::kNone) {
    small.bias = GatherVector(whole.bias_type, product.bias.data(),
                              whole.bias_axis == BiasAxis::kRows ? rows : columns);
  }
  ASSIGN_OR_RETURN(problem.d,
                   TightLayout("d", whole.d.type, Order::kRowMajor, problem.m, problem.n));
  small.d.resize(static_cast<size_t>(problem.d.batch_stride_bytes));
  return small;
}

// Dequantizes the operands as the kernel does.
absl::Status DequantizeSmall(const Kernel& kernel, SmallProduct& small) {
  if (!Dequantizes(kernel, small.problem)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Dequantization made, DequantizationOf(small.problem, kernel.a));
  const auto dequantize = [&](mma::Operand operand, int64_t bytes, std::vector<std::byte>& factors,
                              GatheredMatrix& matrix) {
    if (bytes == 0) return;
    std::vector<std::byte> values(static_cast<size_t>(bytes));
    Dequantize(DequantizeJobOf(small.problem, made, operand, matrix.bytes.data(), factors.data(),
                               values.data()),
               nullptr);
    matrix.bytes = std::move(values);
  };
  dequantize(mma::Operand::kA, made.a_bytes, small.a_factors, small.a);
  dequantize(mma::Operand::kB, made.b_bytes, small.b_factors, small.b);
  small.problem = made.problem;
  small.a.layout = made.problem.a;
  small.b.layout = made.problem.b;
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

// The dense form of a gathered 2:4 A.
GatheredMatrix Expanded(const GatheredMatrix& sparse) {
  const MatrixLayout& layout = sparse.layout;
  const SparseLayout sizes = SparseLayoutOf("a", layout.type, layout.rows, layout.columns).value();
  GatheredMatrix dense;
  dense.layout =
      TightLayout("a", layout.type, Order::kRowMajor, layout.rows, layout.columns).value();
  dense.bytes.resize(static_cast<size_t>(sizes.dense_bytes));
  Expand(sizes, sparse.bytes.data(), dense.bytes.data());
  return dense;
}

// The lines of a gathered matrix as f64, each of `k` elements.
std::vector<double> Decoded(const GatheredMatrix& matrix, int64_t k) {
  if (matrix.layout.is_sparse()) return Decoded(Expanded(matrix), k);
  const auto lines = static_cast<size_t>(matrix.layout.lines());
  std::vector<double> values(lines * static_cast<size_t>(k));
  for (size_t i = 0; i < lines; ++i) {
    DecodeLine(matrix.layout.type,
               matrix.bytes.data() + static_cast<int64_t>(i) * matrix.layout.line_stride_bytes(), k,
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
    const std::vector<double> a = Decoded(small.a, problem.k);
    const std::vector<double> b = Decoded(small.b, problem.k);
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
    const std::vector<double> a = Decoded(small.a, problem.k);
    const std::vector<double> b = Decoded(small.b, problem.k);
    for (int64_t i = 0; i < problem.m; ++i) {
      for (int64_t j = 0; j < problem.n && !IsSet(product.abort); ++j) {
        totals[static_cast<size_t>(i * problem.n + j)] =
            SumOfParts(absl::MakeConstSpan(a).subspan(static_cast<size_t>(i) * k, k),
                       absl::MakeConstSpan(b).subspan(static_cast<size_t>(j) * k, k),
                       line(problem.blocks_of_a(), small.a_factors, i),
                       line(problem.blocks_of_b(), small.b_factors, j));
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
  const std::vector<double> a = reads ? Decoded(small.a, problem.k) : std::vector<double>();
  const std::vector<double> b = reads ? Decoded(small.b, problem.k) : std::vector<double>();
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
      EpilogueTerms terms = {.a_scale = ScaleAt(small.a_scale, row),
                             .b_scale = ScaleAt(small.b_scale, column)};
      if (problem.has_c()) {
        terms.c = Decode(problem.c.type, BitsAt(problem.c, small.c.bytes.data(), i, j));
      }
      if (problem.bias_axis != BiasAxis::kNone) {
        const int64_t index = problem.bias_axis == BiasAxis::kRows ? i : j;
        terms.bias =
            Decode(problem.bias_type, LoadBits(problem.bias_type, small.bias.data(), index));
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
