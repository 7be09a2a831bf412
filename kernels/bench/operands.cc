// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/operands.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "kernels/bench/problem.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/option/resources.h"

namespace gemmd::bench {
namespace {

// Elements are drawn from a table of this many normal variates, which is fast and good enough here.
constexpr size_t kVariates = 1 << 16;

std::vector<uint64_t> EncodedVariates(ElementType type, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<uint64_t> variates(kVariates);
  for (uint64_t& bits : variates) bits = Encode(type, normal(random));
  return variates;
}

template <typename Word>
void DrawWords(const std::vector<uint64_t>& variates, std::mt19937_64& random, int64_t count,
               std::byte* line) {
  constexpr int64_t kDraws = 4;  // Each takes 16 bits.
  for (int64_t i = 0; i < count; i += kDraws) {
    uint64_t bits = random();
    for (int64_t j = i; j < std::min(count, i + kDraws); ++j, bits >>= 16) {
      const auto word = static_cast<Word>(variates[bits % kVariates]);
      std::memcpy(line + j * static_cast<int64_t>(sizeof(Word)), &word, sizeof(Word));
    }
  }
}

void DrawFloats(const MatrixLayout& layout, const std::vector<uint64_t>& variates,
                std::mt19937_64& random, std::byte* line) {
  const int64_t count = layout.line_length();
  switch (BitsOf(layout.type)) {
    case 8: return DrawWords<uint8_t>(variates, random, count, line);
    case 16: return DrawWords<uint16_t>(variates, random, count, line);
    case 32: return DrawWords<uint32_t>(variates, random, count, line);
    case 64: return DrawWords<uint64_t>(variates, random, count, line);
    default:
      for (int64_t i = 0; i < count; ++i) {
        StoreBits(layout.type, line, i, variates[random() % kVariates]);
      }
  }
}

void DrawBytes(std::mt19937_64& random, int64_t count, std::byte* line) {
  for (int64_t i = 0; i < count; i += 8) {
    const uint64_t bits = random();
    std::memcpy(line + i, &bits, static_cast<size_t>(std::min<int64_t>(8, count - i)));
  }
}

// Calls work(first, last) for all lines, on all processors.
template <typename Work>
void ShareLines(int64_t lines, const Work& work) {
  const auto threads = std::min<int64_t>(lines, std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::jthread> helpers;
  for (int64_t i = 0; i < threads; ++i) {
    helpers.emplace_back(work, lines * i / threads, lines * (i + 1) / threads);
  }
}

}  // namespace

std::vector<std::byte> RandomDense(const MatrixLayout& layout, uint64_t seed, int64_t matrices) {
  const int64_t lines = layout.lines() * matrices;
  std::vector<std::byte> bytes(static_cast<size_t>(lines * layout.line_stride_bytes()),
                               std::byte{0xff});
  const bool is_integer = IsInteger(layout.type);
  const std::vector<uint64_t> variates =
      is_integer ? std::vector<uint64_t>() : EncodedVariates(layout.type, seed);
  const int64_t line_bytes = (layout.line_length() * BitsOf(layout.type) + 7) / 8;
  ShareLines(lines, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      // Each line has its own generator, so that the data do not depend on the number of threads.
      std::mt19937_64 random(seed * 1'000'003 + static_cast<uint64_t>(i));
      std::byte* const line = bytes.data() + i * layout.line_stride_bytes();
      if (is_integer) {
        DrawBytes(random, line_bytes, line);
      } else {
        DrawFloats(layout, variates, random, line);
      }
    }
  });
  return bytes;
}

absl::StatusOr<PrunedOperand> RandomSparse(const MatrixLayout& layout, uint64_t seed) {
  ASSIGN_OR_RETURN(const MatrixLayout dense,
                   TightLayout("a", layout.type, Order::kRowMajor, layout.rows, layout.columns));
  ASSIGN_OR_RETURN(const SparseLayout sparse,
                   SparseLayoutOf("a", layout.type, layout.rows, layout.columns));
  PrunedOperand operand;
  operand.dense = RandomDense(dense, seed);
  operand.compressed.resize(static_cast<size_t>(sparse.bytes));
  // Processes groups of rows as separate matrices, which is valid because rows are independent.
  ShareLines(layout.rows, [&](int64_t first, int64_t last) {
    SparseLayout rows = sparse;
    rows.rows = last - first;
    rows.dense_bytes = rows.rows * rows.dense_line_bytes;
    rows.bytes = rows.rows * (rows.value_line_bytes + rows.index_line_bytes);
    std::byte* const part = operand.dense.data() + first * rows.dense_line_bytes;
    PruneByMagnitude(rows, part);
    std::vector<std::byte> compressed(static_cast<size_t>(rows.bytes));
    // Cannot fail: the rows have just been pruned.
    Compress("a", rows, part, compressed.data()).IgnoreError();
    std::copy_n(compressed.begin(), rows.indices_offset(0),
                operand.compressed.begin() + sparse.values_offset(first));
    std::copy_n(compressed.begin() + rows.indices_offset(0), rows.rows * rows.index_line_bytes,
                operand.compressed.begin() + sparse.indices_offset(first));
  });
  return operand;
}

absl::Status CheckMemory(const Problem& problem, int64_t sets, int64_t other_bytes) {
  // A sparse A is drawn dense.
  const Checked a = problem.a.is_sparse() ? PackedBytes(problem.a.type, problem.k) * problem.m * 2
                                          : Checked(problem.a.batch_stride_bytes) * problem.batch;
  const Checked b = Checked(problem.b.batch_stride_bytes) * problem.batch;
  const Checked d = Checked(problem.d.batch_stride_bytes) * problem.batch;
  const Checked bytes = (a + b) * (sets + 1) + d * sets + other_bytes;
  const Shape shape = {problem.m, problem.n, problem.k, problem.batch};
  const std::string refusal = option::RefuseMemory(NameOf(shape), bytes.value());
  if (refusal.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(Concat("--shapes: ", refusal));
}

namespace {

// Normal variates, or codes of factors from 2^-4 to 2^4.
absl::StatusOr<std::vector<std::byte>> RandomFactors(std::string_view field,
                                                     const BlockScale* blocks, int64_t extent,
                                                     const Problem& problem, uint64_t seed) {
  if (blocks == nullptr) return std::vector<std::byte>();
  ASSIGN_OR_RETURN(const int64_t bytes,
                   FactorBytes(field, *blocks, extent, problem.k, problem.batch));
  if (blocks->type != FactorType::kF32) {
    const bool is_ue8m0 = blocks->type == FactorType::kUe8m0;
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<int> codes(is_ue8m0 ? 123 : 0x18, is_ue8m0 ? 131 : 0x58);
    std::vector<std::byte> factors(static_cast<size_t>(bytes));
    for (std::byte& factor : factors) factor = static_cast<std::byte>(codes(random));
    return factors;
  }
  ASSIGN_OR_RETURN(const MatrixLayout line,
                   TightLayout(field, ElementType::kF32, Order::kRowMajor, 1,
                               bytes / static_cast<int64_t>(sizeof(float))));
  return RandomDense(line, seed);
}

}  // namespace

absl::StatusOr<Operands> DrawOperands(const Problem& problem, int set) {
  const auto seed = static_cast<uint64_t>(set) * 2;
  Operands operands;
  if (problem.a.is_sparse()) {
    ASSIGN_OR_RETURN(PrunedOperand a, RandomSparse(problem.a, seed + 1));
    operands.a = std::move(a.compressed);
    operands.dense_a = std::move(a.dense);
  } else {
    operands.a = RandomDense(problem.a, seed + 1, problem.batch);
  }
  operands.b = RandomDense(problem.b, seed + 2, problem.batch);
  if (problem.bias_axis != BiasAxis::kNone) {
    const int64_t count = problem.bias_axis == BiasAxis::kRows ? problem.m : problem.n;
    ASSIGN_OR_RETURN(const MatrixLayout line,
                     TightLayout("bias", problem.bias_type, Order::kRowMajor, 1, count));
    operands.bias = RandomDense(line, seed + 3);
  }
  ASSIGN_OR_RETURN(operands.a_factors, RandomFactors("a.scale.blocks", problem.blocks_of_a(),
                                                     problem.m, problem, seed + 4));
  ASSIGN_OR_RETURN(operands.b_factors, RandomFactors("b.scale.blocks", problem.blocks_of_b(),
                                                     problem.n, problem, seed + 5));
  return operands;
}

}  // namespace gemmd::bench
