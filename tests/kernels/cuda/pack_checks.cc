// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cuda/pack_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <tuple>

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/row_table.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/fragment.h"
#include "kernels/sim/tiles.h"
#include "kernels/sim/unit.h"
#include "tests/kernels/sparse_case.h"

namespace gemmd {
namespace {

constexpr int64_t kLanesOfWarp = 32;

struct Shape {
  int64_t m;
  int64_t n;
  int64_t k;
};

// A row for each way in which the operand may have to be packed.
std::vector<CudaRow> RowsThatPackDifferently(mma::Operand operand) {
  std::set<std::tuple<ElementType, int, LineAxis>> seen;
  std::vector<CudaRow> rows;
  for (const CudaRow& row : kCudaRows) {
    const mma::Instruction& instruction = row.instruction;
    if (instruction.is_sparse()) continue;
    const bool is_new =
        seen.insert({mma::TypeOf(instruction, operand), mma::ContainerBits(instruction, operand),
                     LineAxisOf(instruction, operand)})
            .second;
    if (is_new) rows.push_back(row);
  }
  return rows;
}

// Sparse rows whose form of sparsity exists in the portable format.
std::vector<CudaRow> SparseRows() {
  std::vector<CudaRow> rows;
  for (const CudaRow& row : kCudaRows) {
    if (!row.instruction.is_sparse()) continue;
    const SparseForm form = SparseFormOf(row.instruction.a).value();
    if (form.name() == mma::NameOf(mma::SparsityOf(row.instruction))) rows.push_back(row);
  }
  return rows;
}

std::string Describe(const PackCase& test) {
  const bool is_a = test.operand == mma::Operand::kA;
  const MatrixLayout& layout = is_a ? test.problem.a : test.problem.b;
  return Concat(mma::NameOf(test.row.instruction).view(), ", ", is_a ? "A" : "B", " of ",
                Describe(test.problem), ", order ", static_cast<int>(layout.order),
                ", leading dimension ", layout.leading_dimension, ", batch stride ",
                layout.batch_stride_bytes);
}

// The expected packed element of a matrix, a target line and a position.
using CodeAt = std::function<uint64_t(int64_t matrix, int64_t line, int64_t place)>;

void ExpectLines(const PackCase& test, int64_t length, const CodeAt& code_at,
                 const std::vector<std::byte>& got) {
  const OperandPlan& plan = test.operand_plan();
  const int64_t container = mma::ContainerBits(test.row.instruction, test.operand);
  const int shift = mma::ContainerShift(test.row.instruction, test.operand);
  const int64_t matrices = plan.batch_stride_bytes == 0 ? 1 : test.problem.batch;
  ASSERT_EQ(static_cast<int64_t>(got.size()), test.plan.workspace_bytes);
  std::vector<std::byte> want(got.size(), std::byte{0xff});
  for (int64_t matrix = 0; matrix < matrices; ++matrix) {
    for (int64_t line = 0; line < plan.lines; ++line) {
      std::byte* target = want.data() + plan.offset + matrix * plan.batch_stride_bytes +
                          line * plan.line_stride_bytes;
      std::memset(target, 0, static_cast<size_t>(plan.line_stride_bytes));
      for (int64_t place = 0; place < length; ++place) {
        const int64_t bit = place * container;
        uint64_t word = 0;
        const auto bytes = static_cast<size_t>((container + 7) / 8);
        std::memcpy(&word, target + bit / 8, bytes);
        word |= code_at(matrix, line, place) << (shift + bit % 8);
        std::memcpy(target + bit / 8, &word, bytes);
      }
    }
  }
  const auto [at, expected] = std::mismatch(got.begin(), got.end(), want.begin());
  ASSERT_TRUE(at == got.end()) << "byte " << at - got.begin() - plan.offset << " of lines of "
                               << plan.line_stride_bytes << ": got " << static_cast<int>(*at)
                               << ", want " << static_cast<int>(*expected) << "; "
                               << Describe(test);
}

void CheckDense(const PackRunner& run, const CudaRow& row, mma::Operand operand,
                const Problem& problem, RandomSource& random) {
  const bool is_a = operand == mma::Operand::kA;
  const Product product = FillCase(problem, Pattern::kRandom, random);
  const PackCase test = {row, operand, problem, PlanOf(row, problem).value(),
                         is_a ? product.a : product.b};
  if (!test.operand_plan().is_packed) return;
  const MatrixLayout& layout = is_a ? problem.a : problem.b;
  const bool is_along_k = LineAxisOf(row.instruction, operand) == LineAxis::kK;
  const int64_t length = is_along_k ? problem.k : is_a ? problem.m : problem.n;
  const MatrixView view = {layout, problem.batch, test.source.data()};
  // Lines of A along k are its rows, those of B its columns; otherwise the opposite.
  const bool lines_are_rows = is_along_k == is_a;
  ExpectLines(
      test, length,
      [&](int64_t matrix, int64_t line, int64_t place) {
        return lines_are_rows ? view.bits(matrix, line, place) : view.bits(matrix, place, line);
      },
      run(test));
}

Problem MakeDense(const CudaRow& row, const Shape& shape, Order order, const Layouts& layouts,
                  bool broadcasts) {
  Problem problem;
  problem.m = shape.m;
  problem.n = shape.n;
  problem.k = shape.k;
  problem.batch = layouts.batch;
  problem.a = MakeLayout(row.instruction.a, order, shape.m, shape.k, layouts, broadcasts);
  problem.b = MakeLayout(row.instruction.b, order, shape.k, shape.n, layouts, broadcasts);
  problem.d = MakeLayout(ElementType::kF32, Order::kRowMajor, shape.m, shape.n, layouts);
  return problem;
}

// Compressed matrices of random numbers, one after the other.
std::vector<std::byte> RandomSparse(const Problem& problem, RandomSource& random) {
  const SparseLayout layout = SparseLayoutOf("a", problem.a.type, problem.m, problem.k).value();
  const int64_t matrices = problem.a.batch_stride_bytes == 0 ? 1 : problem.batch;
  std::vector<std::byte> bytes(static_cast<size_t>(layout.bytes * matrices));
  for (int64_t matrix = 0; matrix < matrices; ++matrix) {
    DenseBits dense(layout);
    for (int64_t row = 0; row < problem.m; ++row) {
      for (int64_t column = 0; column < problem.k; ++column) {
        if (random.Between(0, 3) != 0) dense.Set(row, column, RandomNonzero(layout.type, random));
      }
    }
    PruneByMagnitude(layout, dense.data());
    EXPECT_TRUE(Compress("a", layout, dense.data(), bytes.data() + matrix * layout.bytes).ok());
  }
  return bytes;
}

PackCase MakeSparse(const CudaRow& row, const Shape& shape, int64_t batch, bool broadcasts,
                    RandomSource& random) {
  Problem problem = MakeDense(row, shape, Order::kRowMajor, {.batch = batch}, false);
  problem.a = TightSparseLayout("a", row.instruction.a, shape.m, shape.k).value();
  if (broadcasts) problem.a.batch_stride_bytes = 0;
  return {row, mma::Operand::kA, problem, PlanOf(row, problem).value(),
          RandomSparse(problem, random)};
}

// The words of all warps of an instruction's rows for one step, as the simulator's tiles and
// metadata make them: instructions that share words have different selectors.
std::vector<uint32_t> WordsOfStep(const CudaRow& row, const sim::ATiles& tiles, int64_t first_row,
                                  int64_t first_k) {
  const mma::Instruction& instruction = row.instruction;
  std::vector<uint64_t> values(static_cast<size_t>(instruction.m * instruction.a_columns()));
  std::vector<int> a_k(values.size());
  std::vector<uint32_t> words(static_cast<size_t>(instruction.m / 16 * kLanesOfWarp));
  for (int selector = 0; selector < StepsOfMetadata(row); ++selector) {
    std::vector<uint32_t> lanes(words.size());
    tiles.Load(first_row, first_k + selector * instruction.k, values.data(), a_k.data());
    sim::EncodeMetadata(instruction, a_k, selector, lanes);
    for (size_t lane = 0; lane < lanes.size(); ++lane) words[lane] |= lanes[lane];
  }
  return words;
}

// Rearranges the words of several steps so that those of each lane are contiguous.
void AppendTogether(std::span<const uint32_t> steps, std::vector<uint32_t>& words) {
  for (size_t lane = 0; lane < kLanesOfWarp; ++lane) {
    for (size_t at = lane; at < steps.size(); at += kLanesOfWarp) words.push_back(steps[at]);
  }
}

// Each warp's words of all steps are contiguous.
std::vector<uint32_t> WantedWords(const PackCase& test) {
  const mma::Instruction& instruction = test.row.instruction;
  const Problem& problem = test.problem;
  const auto round_up = [](int64_t value, int64_t to) { return (value + to - 1) / to * to; };
  const int64_t matrices = test.plan.metadata_batch_stride_bytes == 0 ? 1 : problem.batch;
  std::vector<uint32_t> words;
  for (int64_t matrix = 0; matrix < matrices; ++matrix) {
    const sim::Product2D product = {.instruction = instruction,
                                    .chip = mma::Chip::kSm90,
                                    .problem = problem,
                                    .a = test.source.data() + matrix * problem.a.batch_stride_bytes,
                                    .b = nullptr};
    const sim::ATiles tiles(product);
    for (int64_t row = 0; row < TilesDown(test.row, problem.m) * test.row.tile.m;
         row += instruction.m) {
      std::vector<std::vector<uint32_t>> of_warps(static_cast<size_t>(instruction.m / 16));
      for (int64_t k = 0; k < round_up(problem.k, test.row.tile.k);
           k += instruction.k * StepsOfMetadata(test.row)) {
        const std::vector<uint32_t> step = WordsOfStep(test.row, tiles, row, k);
        for (size_t warp = 0; warp < of_warps.size(); ++warp) {
          const auto first = step.begin() + static_cast<ptrdiff_t>(warp * kLanesOfWarp);
          of_warps[warp].insert(of_warps[warp].end(), first, first + kLanesOfWarp);
        }
      }
      const size_t together = MetadataWordsTogether(test.row) * kLanesOfWarp;
      for (const std::vector<uint32_t>& warp : of_warps) {
        for (size_t first = 0; first < warp.size(); first += together) {
          AppendTogether(std::span(warp).subspan(first, together), words);
        }
      }
    }
  }
  return words;
}

}  // namespace

void CheckPacking(const PackRunner& run, RandomSource& random) {
  constexpr Shape kShapes[] = {{1, 1, 1}, {37, 135, 70}, {130, 65, 257}};
  for (mma::Operand operand : {mma::Operand::kA, mma::Operand::kB}) {
    for (const CudaRow& row : RowsThatPackDifferently(operand)) {
      for (const Shape& shape : kShapes) {
        for (Order order : kOrders) {
          for (int64_t padding : {0, 1, 4, 10}) {
            const bool broadcasts = random.Between(0, 5) == 0;
            const int64_t gap = random.Between(0, 3);
            const Layouts layouts = {.padding = padding, .batch = 2, .batch_gap = gap};
            CheckDense(run, row, operand, MakeDense(row, shape, order, layouts, broadcasts),
                       random);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

void CheckPackingOfSparseValues(const PackRunner& run, RandomSource& random) {
  std::set<std::tuple<ElementType, int>> seen;
  for (const CudaRow& row : SparseRows()) {
    const int container = mma::ContainerBits(row.instruction, mma::Operand::kA);
    if (!seen.insert({row.instruction.a, container}).second) continue;
    for (const Shape& shape : {Shape{1, 8, 1}, Shape{37, 8, 301}, Shape{20, 8, 64}}) {
      const PackCase test = MakeSparse(row, shape, 2, random.Flip(), random);
      if (!test.plan.a.is_packed) continue;
      const SparseLayout layout = SparseLayoutOf("a", row.instruction.a, shape.m, shape.k).value();
      ExpectLines(
          test, layout.kept(),
          [&](int64_t matrix, int64_t line, int64_t place) {
            return LoadBits(layout.type,
                            test.source.data() + matrix * test.problem.a.batch_stride_bytes +
                                layout.values_offset(line),
                            place);
          },
          run(test));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

void CheckMetadata(const PackRunner& run, RandomSource& random) {
  for (const CudaRow& row : SparseRows()) {
    for (const Shape& shape : {Shape{1, 8, 1}, Shape{70, 8, 270}}) {
      const PackCase test = MakeSparse(row, shape, 2, random.Flip(), random);
      const std::vector<std::byte> got = run(test);
      const std::vector<uint32_t> want = WantedWords(test);
      const auto offset = static_cast<size_t>(test.plan.metadata_offset);
      ASSERT_LE(offset + want.size() * sizeof(uint32_t), got.size());
      for (size_t i = 0; i < want.size(); ++i) {
        uint32_t word = 0;
        std::memcpy(&word, got.data() + offset + i * sizeof(word), sizeof(word));
        ASSERT_EQ(word, want[i]) << "word " << i << "; " << Describe(test);
      }
    }
  }
}

}  // namespace gemmd
