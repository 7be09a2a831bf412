// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/product_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "tests/kernels/page_end_buffer.h"

namespace gemmd {
namespace {

constexpr std::byte kOnes{0xff};

double LargestFinite(ElementType type) {
  const uint64_t code = Encode(type, std::numeric_limits<double>::infinity());
  const uint64_t step = type == ElementType::kTf32 ? 1 << 13 : 1;
  const double value = Decode(type, code);
  return std::isinf(value) ? Decode(type, code - step) : value;
}

// Whether sums of products of its largest numbers exceed the range of f32 or f64.
bool HasWideExponent(ElementType type) {
  return type == ElementType::kF64 || type == ElementType::kF32 || type == ElementType::kTf32 ||
         type == ElementType::kBf16;
}

uint64_t RandomSubnormal(ElementType type, RandomSource& random) {
  const int fraction_bits = FactsOf(type).format.fraction_bits;
  const int unused = type == ElementType::kTf32 ? 13 : 0;
  const uint64_t fraction = random.Bits() & ((uint64_t{1} << fraction_bits) - 1);
  return fraction << unused | (random.Bits() & 1) << (BitsOf(type) - 1);
}

double RandomSpecial(ElementType type, RandomSource& random) {
  constexpr double kSpecials[] = {std::numeric_limits<double>::infinity(),
                                  -std::numeric_limits<double>::infinity(),
                                  std::numeric_limits<double>::quiet_NaN()};
  if (IsInteger(type) || random.Between(0, 15) != 0) {
    return static_cast<double>(random.Between(-3, 3));
  }
  return kSpecials[random.Between(0, 2)];
}

// Draws elements of one operand.
class Filler {
 public:
  Filler(Pattern pattern, ElementType type, bool is_a, const Problem& problem, RandomSource& random)
      : pattern_(pattern), type_(type), is_a_(is_a), random_(random) {
    hot_row_ = random.Between(0, std::max<int64_t>(0, problem.m - 1));
    hot_depth_ = random.Between(0, std::max<int64_t>(0, problem.k - 1));
  }

  // `line` counts rows of A or columns of B, `depth` along k.
  uint64_t Draw(int64_t line, int64_t depth) {
    switch (pattern_) {
      case Pattern::kZeros: return Encode(type_, random_.Flip() ? 0.0 : -0.0);
      case Pattern::kOneHot:
        if (!is_a_) return Encode(type_, Ramp(line, depth));
        return Encode(type_, line == hot_row_ && depth == hot_depth_ ? 1 : 0);
      case Pattern::kRamps: return Encode(type_, Ramp(line, depth));
      case Pattern::kLargest: return DrawLargest(line % 2 == 0 ? 1 : -1);
      case Pattern::kSubnormals:
        if (IsFloat(type_) && (is_a_ || random_.Between(0, 3) == 0)) {
          return RandomSubnormal(type_, random_);
        }
        return Encode(type_, std::ldexp(1, static_cast<int>(random_.Between(-1, 1))));
      case Pattern::kSpecials: return Encode(type_, RandomSpecial(type_, random_));
      case Pattern::kCancellation: return DrawCancelling(line, depth);
      case Pattern::kRandom:
        return IsFloat(type_) ? Encode(type_, random_.Normal()) : random_.Bits();
    }
    return 0;
  }

 private:
  static double Ramp(int64_t line, int64_t depth) {
    return static_cast<double>((line * 3 + depth * 5) % 15 - 7);
  }

  // One sign along k, so that sums grow with k.
  uint64_t DrawLargest(double sign) const {
    if (IsInteger(type_)) return Encode(type_, sign * 1e9);
    if (!is_a_ && HasWideExponent(type_)) return Encode(type_, sign * 0x1p-20);
    return Encode(type_, sign * LargestFinite(type_));
  }

  // A: x, -x, x, -x ... along k; B: nearly the same number along k.
  uint64_t DrawCancelling(int64_t line, int64_t depth) {
    const double x = 1 + static_cast<double>(line % 5) / 8;
    if (is_a_) return Encode(type_, depth % 2 == 0 ? x : -x);
    return Encode(type_, x + (random_.Between(0, 7) == 0 ? 0x1p-8 : 0));
  }

  Pattern pattern_;
  ElementType type_;
  bool is_a_;
  RandomSource& random_;
  int64_t hot_row_;
  int64_t hot_depth_;
};

std::vector<std::byte> RandomBytes(int64_t count, RandomSource& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Bits());
  return bytes;
}

// A batch of matrices whose elements are drawn by draw(row, column).
template <typename Draw>
std::vector<std::byte> FillMatrices(const MatrixLayout& layout, int64_t batch, RandomSource& random,
                                    const Draw& draw) {
  std::vector<std::byte> bytes = RandomBytes(BytesOf("x", layout, batch).value().least, random);
  const int64_t matrices = layout.batch_stride_bytes == 0 ? std::min<int64_t>(1, batch) : batch;
  const bool is_row_major = layout.order == Order::kRowMajor;
  for (int64_t matrix = 0; matrix < matrices; ++matrix) {
    for (int64_t i = 0; i < layout.lines(); ++i) {
      std::byte* line =
          bytes.data() + matrix * layout.batch_stride_bytes + i * layout.line_stride_bytes();
      for (int64_t j = 0; j < layout.line_length(); ++j) {
        StoreBits(layout.type, line, j, is_row_major ? draw(i, j) : draw(j, i));
      }
    }
  }
  return bytes;
}

std::vector<float> FillScale(ScaleKind kind, int64_t count, RandomSource& random) {
  if (kind == ScaleKind::kNone || kind == ScaleKind::kBlocks) return {};
  std::vector<float> scale(static_cast<size_t>(kind == ScaleKind::kTensor ? 1 : count));
  for (float& value : scale) value = static_cast<float>(random.AnyMagnitude(-3, 2));
  return scale;
}

// Codes of factors near one, of all rows or columns and all matrices.
std::vector<std::byte> FillFactors(const BlockScale* blocks, int64_t extent, const Problem& problem,
                                   RandomSource& random) {
  if (blocks == nullptr) return {};
  const int64_t bytes = FactorBytes("x", *blocks, extent, problem.k, problem.batch).value();
  std::vector<std::byte> factors(static_cast<size_t>(bytes));
  for (int64_t at = 0; at < bytes; at += BytesOf(blocks->type)) {
    std::byte* const factor = factors.data() + at;
    const auto value = static_cast<float>(random.AnyMagnitude(-3, 2));
    switch (blocks->type) {
      case FactorType::kF32: std::memcpy(factor, &value, sizeof(value)); break;
      case FactorType::kUe8m0: *factor = static_cast<std::byte>(random.Between(124, 130)); break;
      case FactorType::kUe4m3: *factor = static_cast<std::byte>(random.Between(0x28, 0x48)); break;
    }
  }
  return factors;
}

// The copies that kernels work on; one set per thread, since mapping memory is slow.
struct Copies {
  PageEndBuffer a, b, c, bias, d, workspace, a_factors, b_factors;
};

const std::byte* CopyOf(const std::vector<std::byte>& bytes, PageEndBuffer& buffer) {
  const auto size = static_cast<int64_t>(bytes.size());
  std::byte* copy = buffer.Place(size, kOnes);
  if (size > 0) std::memcpy(copy, bytes.data(), bytes.size());
  return size > 0 ? copy : nullptr;
}

}  // namespace

std::string_view NameOf(Pattern pattern) {
  switch (pattern) {
    case Pattern::kZeros: return "zeros";
    case Pattern::kOneHot: return "one-hot";
    case Pattern::kRamps: return "ramps";
    case Pattern::kLargest: return "largest";
    case Pattern::kSubnormals: return "subnormals";
    case Pattern::kSpecials: return "specials";
    case Pattern::kCancellation: return "cancellation";
    case Pattern::kRandom: return "random";
  }
  return "";
}

MatrixLayout MakeLayout(ElementType type, Order order, int64_t rows, int64_t columns,
                        const Layouts& layouts, bool broadcasts) {
  MatrixLayout layout = TightLayout("x", type, order, rows, columns).value();
  layout.leading_dimension += layouts.padding;
  const int64_t element_bytes = (BitsOf(type) + 7) / 8;
  layout.batch_stride_bytes =
      broadcasts ? 0
                 : layout.lines() * layout.line_stride_bytes() + layouts.batch_gap * element_bytes;
  return layout;
}

Problem MakeProblem(const Kernel& kernel, int64_t m, int64_t n, int64_t k, const Layouts& layouts) {
  Problem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.batch = layouts.batch;
  problem.a = MakeLayout(kernel.a, layouts.a, m, k, layouts, layouts.broadcasts_a);
  problem.b = MakeLayout(kernel.b, layouts.b, k, n, layouts, layouts.broadcasts_b);
  problem.c = MakeLayout(kernel.recipe.accumulation, layouts.c, m, n, layouts);
  problem.d = MakeLayout(kernel.recipe.accumulation, layouts.d, m, n, layouts);
  problem.accumulation = kernel.recipe.accumulation;
  if (kernel.recipe.block_scaling == BlockScaling::kParts) {
    // Blocks that end at different places along k, and never at a tile's end.
    problem.a_scale = problem.b_scale = ScaleKind::kBlocks;
    problem.a_blocks = {.lines = 1, .depth = 13, .per_matrix = layouts.batch > 1};
    problem.b_blocks = {.type = FactorType::kUe4m3, .lines = 5, .depth = 9};
  }
  return problem;
}

Product FillCase(const Problem& problem, Pattern pattern, RandomSource& random) {
  Product product;
  product.problem = problem;
  Filler a(pattern, problem.a.type, true, problem, random);
  Filler b(pattern, problem.b.type, false, problem, random);
  product.a = FillMatrices(problem.a, problem.batch, random,
                           [&](int64_t row, int64_t column) { return a.Draw(row, column); });
  product.b = FillMatrices(problem.b, problem.batch, random,
                           [&](int64_t row, int64_t column) { return b.Draw(column, row); });
  if (problem.has_c()) {
    product.c = FillMatrices(problem.c, problem.batch, random, [&](int64_t, int64_t) {
      return Encode(problem.c.type, random.AnyMagnitude(-2, 2));
    });
  }
  if (problem.bias_axis != BiasAxis::kNone) {
    const int64_t count = problem.bias_axis == BiasAxis::kRows ? problem.m : problem.n;
    const MatrixLayout line =
        TightLayout("bias", problem.bias_type, Order::kRowMajor, 1, count).value();
    product.bias = FillMatrices(line, 1, random, [&](int64_t, int64_t) {
      return Encode(problem.bias_type, random.AnyMagnitude(-2, 2));
    });
  }
  product.a_scale = FillScale(problem.a_scale, problem.m, random);
  product.b_scale = FillScale(problem.b_scale, problem.n, random);
  product.a_factors = FillFactors(problem.blocks_of_a(), problem.m, problem, random);
  product.b_factors = FillFactors(problem.blocks_of_b(), problem.n, problem, random);
  return product;
}

Product WithSparseA(Product& dense) {
  const Problem& problem = dense.problem;
  const SparseLayout layout = SparseLayoutOf("a", problem.a.type, problem.m, problem.k).value();
  Product sparse = dense;
  sparse.problem.a = TightSparseLayout("a", problem.a.type, problem.m, problem.k).value();
  const bool broadcasts = problem.a.batch_stride_bytes == 0;
  if (broadcasts) sparse.problem.a.batch_stride_bytes = 0;
  const int64_t matrices = broadcasts ? std::min<int64_t>(1, problem.batch) : problem.batch;
  sparse.a.assign(static_cast<size_t>(matrices * layout.bytes), std::byte{0});
  for (int64_t i = 0; i < matrices; ++i) {
    std::byte* const matrix = dense.a.data() + i * layout.dense_bytes;
    PruneByMagnitude(layout, matrix);
    EXPECT_TRUE(Compress("a", layout, matrix, sparse.a.data() + i * layout.bytes).ok());
    // Compression does not keep the sign of zeros, which may show in a result.
    Expand(layout, sparse.a.data() + i * layout.bytes, matrix);
  }
  return sparse;
}

absl::StatusOr<std::vector<std::byte>> RunKernel(const Kernel& kernel, const Product& product,
                                                 const Target& target) {
  thread_local Copies copies;
  const Problem& problem = product.problem;
  RETURN_IF_ERROR(Validate(problem));
  RETURN_IF_ERROR(kernel.supports(problem));
  ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel.workspace_bytes(problem));
  const int64_t d_bytes = BytesOf("d", problem.d, problem.batch).value().least;
  const int64_t rounded = (workspace_bytes + 63) / 64 * 64;
  std::byte* d = copies.d.Place(d_bytes, kOnes);
  std::byte* workspace = copies.workspace.Place(rounded, kOnes);
  const bool reads_operands = problem.has_product() && problem.has_output();
  const GemmArgs args = {
      .problem = problem,
      .target = target,
      .a = reads_operands ? CopyOf(product.a, copies.a) : nullptr,
      .b = reads_operands ? CopyOf(product.b, copies.b) : nullptr,
      .c = CopyOf(product.c, copies.c),
      .bias = CopyOf(product.bias, copies.bias),
      .a_scale = product.a_scale,
      .b_scale = product.b_scale,
      .d = d_bytes > 0 ? d : nullptr,
      .workspace = {workspace, static_cast<size_t>(workspace_bytes)},
      .a_factors = reads_operands ? CopyOf(product.a_factors, copies.a_factors) : nullptr,
      .b_factors = reads_operands ? CopyOf(product.b_factors, copies.b_factors) : nullptr,
  };
  RETURN_IF_ERROR(kernel.launch(args));
  if (!copies.d.FrontIsIntact()) return absl::DataLossError("bytes in front of D were written");
  if (!copies.workspace.FrontIsIntact()) {
    return absl::DataLossError("bytes in front of the workspace were written");
  }
  return std::vector<std::byte>(d, d + d_bytes);
}

testing::AssertionResult PaddingIsUntouched(const Problem& problem,
                                            const std::vector<std::byte>& d) {
  const MatrixLayout& layout = problem.d;
  std::vector<std::byte> want(d.size(), kOnes);
  const int64_t line_bits = layout.line_length() * BitsOf(layout.type);
  for (int64_t matrix = 0; matrix < (d.empty() ? 0 : problem.batch); ++matrix) {
    for (int64_t i = 0; i < layout.lines(); ++i) {
      const int64_t start = matrix * layout.batch_stride_bytes + i * layout.line_stride_bytes();
      const auto first = static_cast<size_t>(start);
      const auto bytes = static_cast<size_t>((line_bits + 7) / 8);
      std::copy_n(d.begin() + start, bytes, want.begin() + start);
      if (line_bits % 8 == 0) continue;
      const auto elements = std::byte{0xff} >> (8 - line_bits % 8);
      want[first + bytes - 1] &= elements;
    }
  }
  const auto [got, expected] = std::mismatch(d.begin(), d.end(), want.begin());
  if (got == d.end()) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "byte " << got - d.begin() << " of D is " << static_cast<int>(*got) << ", want "
         << static_cast<int>(*expected);
}

void PrintTo(const Kernel& kernel, std::ostream* out) { *out << kernel.name; }

std::string DescribeCase(const Problem& problem, Pattern pattern) {
  return Concat(Describe(problem), ", D ", problem.d.order == Order::kRowMajor ? "row" : "column",
                ", leading dimensions ", problem.a.leading_dimension, " ",
                problem.b.leading_dimension, " ", problem.d.leading_dimension, ", ",
                NameOf(pattern));
}

}  // namespace gemmd
