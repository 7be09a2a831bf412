// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/cases.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/row.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/warp_work.h"
#include "kernels/cuda/weights.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/text.h"
#include "tests/gpu/epilogues.h"

namespace gemmd {
namespace {

Family FamilyAt(size_t index) { return kAllFamilies[index % kAllFamilies.size()]; }

std::array<int64_t, 6> ExtentsAbout(int64_t tile) {
  return {0, 1, tile - 1, tile, tile + 1, 2 * tile + 3};
}

// The number of families and the numbers of extents have no common factor, so that all combinations
// occur.
void AddShapes(const Kernel& kernel, const Tile& tile, size_t round, std::vector<CaseSpec>& cases) {
  for (const int64_t m : ExtentsAbout(tile.m)) {
    for (const int64_t n : ExtentsAbout(tile.n)) {
      for (const int64_t k : ExtentsAbout(tile.k)) {
        const Family family = FamilyAt(cases.size() + 4 * round);
        cases.push_back({Topic::kShapes, m, n, k, family, 1, false, false, kernel.instruction->d});
      }
    }
  }
}

void AddFamilies(const Kernel& kernel, const Tile& tile, std::vector<CaseSpec>& cases) {
  for (const Family family : kAllFamilies) {
    const int64_t k = family == Family::kLongChain ? 9 * tile.k + 1 : 2 * tile.k + 3;
    cases.push_back({Topic::kFamilies, tile.m + 1, tile.n + 1, k, family, 1, false, false,
                     kernel.instruction->d});
  }
}

void AddBatches(const Kernel& kernel, const Tile& tile, std::vector<CaseSpec>& cases) {
  for (const int64_t batch : {0, 2, 3}) {
    for (const bool shares_a : {false, true}) {
      for (const bool shares_b : {false, true}) {
        cases.push_back({Topic::kBatches, tile.m + 1, tile.n / 2 + 1, tile.k + 1, Family::kNormal,
                         batch, shares_a, shares_b, kernel.instruction->d});
      }
    }
  }
}

// Extents and distances of lines are whole chunks; tiles hang over the ends of both.
void AddWholeOperands(const Kernel& kernel, const Tile& tile, bool is_quick,
                      std::vector<CaseSpec>& cases) {
  const ElementType d = kernel.instruction->d;
  const int64_t k = 2 * tile.k + 16;
  cases.push_back(
      {Topic::kOrders, tile.m + 16, tile.n + 48, k, Family::kNormal, 2, true, false, d});
  if (is_quick) return;
  for (const int64_t m : {int64_t{16}, int64_t{tile.m}, int64_t{2 * tile.m - 16}}) {
    for (const int64_t n : {int64_t{16}, int64_t{tile.n}, int64_t{2 * tile.n - 16}}) {
      const Family family = FamilyAt(cases.size());
      cases.push_back({Topic::kOrders, m, n, k, family, 1, false, false, d});
    }
  }
  cases.push_back({Topic::kOrders, 48, 32, 9 * tile.k + 3, Family::kAnyBits, 1, false, false, d});
  cases.push_back({Topic::kOrders, 48, 32, 5, Family::kNormal, 3, false, true, d});
}

// Few elements, since the simulator takes as long for each as for a whole product of other cases.
void AddLong(const Kernel& kernel, const Tile& tile, std::vector<CaseSpec>& cases) {
  const int64_t k = (2 * kTilesBetweenLooks + 1) * tile.k + 3;
  cases.push_back({Topic::kLong, 2, 3, k, Family::kNormal, 1, false, false, kernel.instruction->d});
}

void AddOutputs(const Tile& tile, Topic topic, int times, std::vector<CaseSpec>& cases) {
  for (int i = 0; i < times; ++i) {
    for (const ElementType d : kAllElementTypes) {
      if (d == ElementType::kB1) continue;
      const bool is_small = cases.size() % 2 == 0;
      const Family family = topic == Topic::kOutputs ? FamilyAt(cases.size()) : Family::kNormal;
      cases.push_back({topic, is_small ? 37 : tile.m + 1, is_small ? 21 : tile.n + 3,
                       is_small ? tile.k - 1 : tile.k + 1, family, is_small ? 2 : 1, false, false,
                       d});
    }
  }
}

// Lines of D are whole chunks, so that warpgroups finish D themselves: a column-major D in every
// other two cases, a row-major D in all.
void AddWholeLines(const CudaRow& row, int times, std::vector<CaseSpec>& cases) {
  const Tile& tile = row.tile;
  for (int i = 0; i < times; ++i) {
    for (const ElementType d : kAllElementTypes) {
      if (!Stores(row, d)) continue;
      const Family family = BitsOf(d) == 8 ? FamilyAt(cases.size()) : Family::kNormal;
      cases.push_back({Topic::kEpilogues, tile.m + 16 + i / 2 % 2, tile.n + 16, tile.k / 2, family,
                       i % 2 + 1, false, false, d});
    }
  }
}

// A part of a promoted sum, several sums, and more of them than the ring has stages.
void AddBlocks(const Kernel& kernel, const Tile& tile, bool is_quick,
               std::vector<CaseSpec>& cases) {
  if (kernel.recipe.block_scaling != BlockScaling::kPromotions) return;
  const int64_t promotion_k = kernel.recipe.promotion_k;
  const ElementType d = kernel.instruction->d;
  cases.push_back({Topic::kBlocks, tile.m + 9, tile.n + 16, 3 * promotion_k + 16, Family::kNormal,
                   2, true, false, d});
  if (is_quick) return;
  for (const int64_t k : {int64_t{1}, promotion_k, 2 * promotion_k + 1, 27 * promotion_k}) {
    for (const int64_t m : {int64_t{1}, int64_t{tile.m}, int64_t{2 * tile.m + 3}}) {
      for (const int64_t n : {int64_t{5}, int64_t{tile.n}, int64_t{2 * tile.n + 16}}) {
        const int64_t batch = 1 + static_cast<int64_t>(cases.size() % 3);
        const ElementType type = cases.size() % 2 == 0 ? d : ElementType::kBf16;
        cases.push_back(
            {Topic::kBlocks, m, n, k, FamilyAt(cases.size()), batch, false, false, type});
      }
    }
  }
}

// Each type as A, as B and, if bf16 takes two of them, as both; a sparse A is never quantized.
void AddDequantized(const Kernel& kernel, const Tile& tile, bool is_quick,
                    std::vector<CaseSpec>& cases) {
  const bool is_half = kernel.a == ElementType::kF16 || kernel.a == ElementType::kBf16;
  if (!is_half || kernel.a != kernel.b) return;
  const auto add = [&](std::optional<ElementType> a, std::optional<ElementType> b) {
    const auto turn = static_cast<int64_t>(cases.size());
    const int64_t shift = turn % 3 == 0 ? 0 : turn % 17;  // Whole lines, or any.
    cases.push_back({Topic::kDequantized, tile.m / 2 + shift, tile.n / 2 + shift,
                     tile.k + 16 + shift, FamilyAt(cases.size()), 1 + turn % 2, turn % 5 == 0,
                     turn % 7 == 0, kernel.instruction->d, a, b});
  };
  size_t index = 0;
  for (const ElementType type : kAllElementTypes) {
    if (BitsOf(type) > 8 || type == ElementType::kB1) continue;
    add(std::nullopt, type);
    if (is_quick) return;
    if (kernel.instruction->is_sparse()) continue;
    add(type, std::nullopt);
    constexpr std::array kFloats = {ElementType::kE4m3, ElementType::kE5m2, ElementType::kE2m1};
    if (IsFloat(type) && kernel.a == ElementType::kBf16) add(type, kFloats[index++ % 3]);
  }
}

// As A and as B, one chunk along k and more than the ring has stages, one block and several.
void AddWeights(const Kernel& kernel, const Tile& tile, bool is_quick,
                std::vector<CaseSpec>& cases) {
  if (!IsNarrow(*CudaRowOf(kernel)) || kernel.a != kernel.b || BitsOf(kernel.a) != 16) return;
  constexpr int64_t kLines = kWeightLines;
  for (const int64_t chunks : {1, 2, 5, 27}) {
    for (const int64_t lines : {kLines + 40, kLines, 3 * kLines - 1}) {
      for (const int64_t others : {int64_t{1}, int64_t{tile.n}, 2 * tile.n + int64_t{3}}) {
        const Family family = FamilyAt(cases.size());
        const bool is_a = cases.size() % 2 == 0;
        const ElementType d = cases.size() % 3 == 0 ? ElementType::kBf16 : ElementType::kF32;
        CaseSpec spec = {Topic::kWeights,
                         is_a ? lines : others,
                         is_a ? others : lines,
                         chunks * kWeightDepth,
                         family,
                         1,
                         false,
                         false,
                         d};
        (is_a ? spec.a : spec.b) = ElementType::kS4;
        cases.push_back(spec);
        if (is_quick) return;
      }
    }
  }
}

std::vector<CaseSpec> QuickCases(const Kernel& kernel, const Tile& tile) {
  const ElementType d = kernel.instruction->d;
  const int64_t across = tile.m + 1;
  std::vector<CaseSpec> cases = {
      {Topic::kShapes, 1, 1, 1, Family::kNormal, 1, false, false, d},
      {Topic::kShapes, tile.m, tile.n, tile.k, Family::kNormal, 1, false, false, d},
      {Topic::kShapes, across, tile.n + 1, 2 * tile.k + 3, Family::kAnyBits, 1, false, false, d},
      {Topic::kBatches, across, 17, tile.k + 1, Family::kNormal, 2, false, true, d},
      {Topic::kEpilogues, across, 19, tile.k + 1, Family::kNormal, 1, false, false,
       ElementType::kF16},
      {Topic::kEpilogues, 17, tile.n + 1, 5, Family::kNormal, 1, false, false, ElementType::kE2m1},
  };
  if (HasWarpgroups(*CudaRowOf(kernel))) {
    AddWholeLines(*CudaRowOf(kernel), 2, cases);
    AddWholeOperands(kernel, tile, true, cases);
    AddBlocks(kernel, tile, true, cases);
  }
  AddDequantized(kernel, tile, true, cases);
  AddWeights(kernel, tile, true, cases);
  return cases;
}

// The elements of A or B as a family fills them, without gaps.
struct Operand {
  MatrixLayout layout;
  std::vector<std::byte> bytes;
};

// What kept places beyond k must hold.
void ClearBeyond(const MatrixLayout& a, std::byte* matrix) {
  const SparseLayout layout = SparseLayoutOf("a", a.type, a.rows, a.columns).value();
  std::vector<int64_t> columns(static_cast<size_t>(layout.kept()));
  for (int64_t row = 0; row < layout.rows; ++row) {
    KeptColumns(layout, matrix, row, columns.data());
    for (size_t i = 0; i < columns.size(); ++i) {
      if (columns[i] < layout.columns) continue;
      StoreBits(a.type, matrix + layout.values_offset(row), static_cast<int64_t>(i), 0);
    }
  }
}

void Append(const std::vector<std::byte>& matrix, Operand& operand) {
  operand.bytes.insert(operand.bytes.end(), matrix.begin(), matrix.end());
}

// The families need all extents to be at least 1.
void MakeOperands(const Kernel& kernel, const CaseSpec& spec, RandomSource& random, Operand& a,
                  Operand& b) {
  // A kernel's own types need not be those that its instruction multiplies.
  mma::Instruction instruction = *kernel.instruction;
  instruction.a = spec.a.value_or(kernel.a);
  instruction.b = spec.b.value_or(kernel.b);
  for (int64_t i = 0; i < std::max<int64_t>(1, spec.batch); ++i) {
    FamilyCase made = MakeCase(instruction, spec.family, std::max<int64_t>(1, spec.m),
                               std::max<int64_t>(1, spec.n), std::max<int64_t>(1, spec.k), random);
    if (made.problem.a.is_sparse()) ClearBeyond(made.problem.a, made.a.data());
    a.layout = made.problem.a;
    b.layout = made.problem.b;
    Append(made.a, a);
    Append(made.b, b);
  }
}

Spacing RandomSpacing(bool is_whole, RandomSource& random) {
  constexpr std::array kSpacings = {Spacing::kTight, Spacing::kAligned, Spacing::kOdd};
  return kSpacings[static_cast<size_t>(random.Between(0, is_whole ? 1 : 2))];
}

MatrixLayout LayoutOf(const CaseSpec& spec, ElementType type, Order order, int64_t rows,
                      int64_t columns, bool is_shared, RandomSource& random) {
  const Spacing spacing = RandomSpacing(spec.topic == Topic::kOrders, random);
  MatrixLayout layout = SpacedLayout(type, order, rows, columns, spacing);
  if (is_shared) layout.batch_stride_bytes = 0;
  return layout;
}

// Which of A, B and D are column major; a sparse A always has the same order.
struct Orders {
  Order a;
  Order b;
  Order d;
};

std::vector<Orders> OrdersOf(const Kernel& kernel, const CaseSpec& spec, bool is_quick,
                             RandomSource& random) {
  std::vector<Orders> all;
  for (const Order a : {Order::kRowMajor, Order::kColumnMajor}) {
    if (kernel.instruction->is_sparse() && a != Order::kRowMajor) continue;
    for (const Order b : {Order::kRowMajor, Order::kColumnMajor}) {
      for (const Order d : {Order::kRowMajor, Order::kColumnMajor}) all.push_back({a, b, d});
    }
  }
  if (spec.topic == Topic::kOrders || (spec.topic == Topic::kShapes && !is_quick)) return all;
  const auto first = static_cast<size_t>(random.Between(0, static_cast<int64_t>(all.size()) - 1));
  return {all[first], all[all.size() - 1 - first]};  // Opposite pairs, so that each matrix has each
                                                     // order.
}

std::vector<std::byte> Place(const Operand& operand, const MatrixLayout& layout, int64_t batch,
                             RandomSource& random) {
  std::vector<std::byte> bytes = RandomMatrices(layout, batch, random);
  if (layout.empty() || batch == 0) return bytes;
  const int64_t matrices = layout.batch_stride_bytes == 0 ? 1 : batch;
  CopyElements(operand.layout, operand.bytes.data(), layout, bytes.data(), matrices);
  return bytes;
}

Problem MakeProblem(const Kernel& kernel, const CaseSpec& spec, const Orders& orders,
                    RandomSource& random) {
  const mma::Instruction& instruction = *kernel.instruction;
  Problem problem;
  problem.m = spec.m;
  problem.n = spec.n;
  problem.k = spec.k;
  problem.batch = spec.batch;
  problem.accumulation = kernel.recipe.accumulation;
  if (instruction.bit_count == mma::BitCount::kXor) problem.bit_operation = BitOperation::kXor;
  if (instruction.is_sparse()) {
    problem.a = TightSparseLayout("a", kernel.a, spec.m, spec.k).value();
    if (spec.shares_a) problem.a.batch_stride_bytes = 0;
  } else {
    problem.a =
        LayoutOf(spec, spec.a.value_or(kernel.a), orders.a, spec.m, spec.k, spec.shares_a, random);
  }
  problem.b =
      LayoutOf(spec, spec.b.value_or(kernel.b), orders.b, spec.k, spec.n, spec.shares_b, random);
  problem.d = LayoutOf(spec, spec.d, orders.d, spec.m, spec.n, false, random);
  return problem;
}

// Blocks of one line, of a few, of those that kernels treat as one, and of all.
BlockScale DrawPromotedBlocks(const Kernel& kernel, RandomSource& random) {
  constexpr std::array kTypes = {FactorType::kF32, FactorType::kUe8m0, FactorType::kUe4m3};
  constexpr std::array<int64_t, 6> kLines = {1, 3, 64, 100, 128, 1 << 20};
  const int64_t promotion_k = kernel.recipe.promotion_k;
  const std::array<int64_t, 4> depths = {promotion_k, promotion_k, 2 * promotion_k,
                                         64 * promotion_k};
  const auto any = [&random](const auto& all) {
    return all[static_cast<size_t>(random.Between(0, static_cast<int64_t>(all.size()) - 1))];
  };
  return {.type = any(kTypes),
          .lines = any(kLines),
          .depth = any(depths),
          .per_matrix = random.Between(0, 1) == 1};
}

// Blocks of few and of many elements, in whole chunks or not.
BlockScale DrawDequantizedBlocks(bool may_have_f32, bool has_chunks, RandomSource& random) {
  constexpr std::array kTypes = {FactorType::kF32, FactorType::kUe8m0, FactorType::kUe4m3};
  constexpr std::array<int64_t, 5> kLines = {1, 1, 3, 32, 1 << 20};
  constexpr std::array<int64_t, 6> kDepths = {1, 7, 16, 32, 128, int64_t{1} << 40};
  const auto any = [&random](const auto& all) {
    return all[static_cast<size_t>(random.Between(0, static_cast<int64_t>(all.size()) - 1))];
  };
  constexpr std::array<int64_t, 4> kWholeChunks = {64, 64, 128, int64_t{1} << 40};
  return {.type = may_have_f32 ? any(kTypes) : kTypes[static_cast<size_t>(random.Between(1, 2))],
          .lines = any(kLines),
          .depth = has_chunks ? any(kWholeChunks) : any(kDepths),
          .per_matrix = random.Between(0, 1) == 1};
}

// Mostly factors near one; every fiftieth has any bits.
std::vector<std::byte> DrawFactors(const BlockScale* blocks, int64_t extent, const Problem& problem,
                                   RandomSource& random) {
  if (blocks == nullptr) return {};
  const int64_t bytes = FactorBytes("x", *blocks, extent, problem.k, problem.batch).value();
  std::vector<std::byte> factors(static_cast<size_t>(bytes));
  for (int64_t at = 0; at < bytes; at += BytesOf(blocks->type)) {
    const bool is_any = random.Between(0, 49) == 0;
    const auto value = static_cast<float>(random.AnyMagnitude(-9, 9));
    const auto bits =
        is_any ? static_cast<uint32_t>(random.Bits()) : std::bit_cast<uint32_t>(value);
    const auto code = static_cast<uint8_t>(is_any ? random.Bits() : random.Between(0x70, 0x8a));
    std::byte* const factor = factors.data() + at;
    if (blocks->type == FactorType::kF32) {
      std::memcpy(factor, &bits, sizeof(bits));
    } else {
      *factor = std::byte{code};
    }
  }
  return factors;
}

// The factors of a case: of A, of B, or of both, the same for all of its products; of dequantized
// operands perhaps of none.
void AddFactors(const Kernel& kernel, const CaseSpec& spec, RandomSource& random,
                std::vector<Product>& products) {
  const bool are_weights = spec.topic == Topic::kWeights;
  const bool is_dequantized = spec.topic == Topic::kDequantized || are_weights;
  const bool may_have_f32 = !spec.a || !spec.b;
  const auto has_blocks = [&](std::optional<ElementType> type) {
    return type && random.Between(0, 3) != 0;
  };
  const auto draw = [&] {
    return is_dequantized ? DrawDequantizedBlocks(may_have_f32, are_weights, random)
                          : DrawPromotedBlocks(kernel, random);
  };
  const int64_t which = random.Between(0, 3);
  Product drawn;
  drawn.problem = products.front().problem;
  Problem& problem = drawn.problem;
  if (is_dequantized ? has_blocks(spec.a) : which != 1) {
    problem.a_scale = ScaleKind::kBlocks;
    problem.a_blocks = draw();
  }
  if (is_dequantized ? has_blocks(spec.b) : which != 0) {
    problem.b_scale = ScaleKind::kBlocks;
    problem.b_blocks = draw();
  }
  drawn.a_factors = DrawFactors(problem.blocks_of_a(), spec.m, problem, random);
  drawn.b_factors = DrawFactors(problem.blocks_of_b(), spec.n, problem, random);
  for (Product& product : products) {
    product.problem.a_scale = problem.a_scale;
    product.problem.b_scale = problem.b_scale;
    product.problem.a_blocks = problem.a_blocks;
    product.problem.b_blocks = problem.b_blocks;
    product.a_factors = drawn.a_factors;
    product.b_factors = drawn.b_factors;
  }
}

}  // namespace

std::string_view NameOf(Topic topic) {
  switch (topic) {
    case Topic::kShapes: return "shapes";
    case Topic::kFamilies: return "families";
    case Topic::kOrders: return "orders";
    case Topic::kBatches: return "batches";
    case Topic::kLong: return "long k";
    case Topic::kOutputs: return "outputs";
    case Topic::kBlocks: return "blocks";
    case Topic::kDequantized: return "dequantized";
    case Topic::kWeights: return "weights";
    case Topic::kEpilogues: return "epilogues";
  }
  return "";
}

std::vector<CaseSpec> CasesOf(const Kernel& kernel, size_t round, bool is_quick) {
  constexpr int kEpiloguesOfAType = 3;
  constexpr int kWholeLinesOfAType = 8;
  const Tile tile = CudaRowOf(kernel)->tile;
  if (is_quick) return QuickCases(kernel, tile);
  std::vector<CaseSpec> cases;
  AddShapes(kernel, tile, round, cases);
  AddFamilies(kernel, tile, cases);
  AddBatches(kernel, tile, cases);
  AddLong(kernel, tile, cases);
  AddOutputs(tile, Topic::kOutputs, 1, cases);
  AddOutputs(tile, Topic::kEpilogues, kEpiloguesOfAType, cases);
  if (HasWarpgroups(*CudaRowOf(kernel))) {
    AddWholeLines(*CudaRowOf(kernel), kWholeLinesOfAType, cases);
    AddWholeOperands(kernel, tile, false, cases);
    AddBlocks(kernel, tile, false, cases);
  }
  AddDequantized(kernel, tile, false, cases);
  AddWeights(kernel, tile, false, cases);
  return cases;
}

std::vector<Product> MakeProducts(const Kernel& kernel, const CaseSpec& spec, bool is_quick,
                                  RandomSource& random) {
  Operand a;
  Operand b;
  MakeOperands(kernel, spec, random, a, b);
  const Epilogue epilogue =
      spec.topic == Topic::kEpilogues ? DrawEpilogue(kernel, spec, random) : Epilogue{};
  std::vector<Product> products;
  for (const Orders& orders : OrdersOf(kernel, spec, is_quick, random)) {
    Product& product = products.emplace_back();
    product.problem = MakeProblem(kernel, spec, orders, random);
    product.a = Place(a, product.problem.a, spec.batch, random);
    product.b = Place(b, product.problem.b, spec.batch, random);
    if (spec.topic == Topic::kEpilogues) AddEpilogue(epilogue, product, random);
  }
  if (spec.topic == Topic::kBlocks || spec.topic == Topic::kDequantized ||
      spec.topic == Topic::kWeights) {
    AddFactors(kernel, spec, random, products);
  }
  return products;
}

std::string Describe(const CaseSpec& spec, const Problem& problem) {
  return Concat(NameOf(spec.topic), ": ", Describe(problem), ", D ",
                problem.d.order == Order::kRowMajor ? "row" : "column", ", leading dimensions ",
                problem.a.leading_dimension, " ", problem.b.leading_dimension, " ",
                problem.d.leading_dimension, ", ", NameOf(spec.family), DescribeEpilogue(problem));
}

}  // namespace gemmd
