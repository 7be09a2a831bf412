// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/product.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace gemmd {
namespace {

// In f64, f32, tf32, f16 and bf16 a NaN, in the other types a value that sums rarely have.
constexpr std::byte kPoison{0xff};

std::byte* LineOf(const MatrixLayout& layout, std::byte* matrix, int64_t line) {
  return matrix + line * layout.line_stride_bytes();
}

void ClearLastByte(const MatrixLayout& layout, std::byte* matrix) {
  const int64_t bits = layout.line_length() * BitsOf(layout.type);
  if (bits % 8 == 0) return;
  for (int64_t i = 0; i < layout.lines(); ++i) LineOf(layout, matrix, i)[bits / 8] = std::byte{0};
}

template <typename Word>
void CopyWords(const MatrixLayout& from, const std::byte* source, const MatrixLayout& to,
               std::byte* target) {
  const bool turns = from.order != to.order;
  const int64_t step = turns ? to.line_stride_bytes() : int64_t{sizeof(Word)};
  for (int64_t i = 0; i < from.lines(); ++i) {
    const std::byte* line = source + i * from.line_stride_bytes();
    std::byte* first = turns ? target + i * int64_t{sizeof(Word)} : LineOf(to, target, i);
    for (int64_t j = 0; j < from.line_length(); ++j) {
      std::memcpy(first + j * step, line + j * int64_t{sizeof(Word)}, sizeof(Word));
    }
  }
}

void CopyPacked(const MatrixLayout& from, const std::byte* source, const MatrixLayout& to,
                std::byte* target) {
  ClearLastByte(to, target);
  const bool turns = from.order != to.order;
  for (int64_t i = 0; i < from.lines(); ++i) {
    const std::byte* line = source + i * from.line_stride_bytes();
    for (int64_t j = 0; j < from.line_length(); ++j) {
      const uint64_t bits = LoadBits(from.type, line, j);
      StoreBits(to.type, LineOf(to, target, turns ? j : i), turns ? i : j, bits);
    }
  }
}

const std::byte* DataOf(const std::vector<std::byte>& bytes, bool is_read) {
  return is_read && !bytes.empty() ? bytes.data() : nullptr;
}

}  // namespace

MatrixLayout SpacedLayout(ElementType type, Order order, int64_t rows, int64_t columns,
                          Spacing spacing) {
  constexpr int64_t kLineBits = 128;
  MatrixLayout layout = TightLayout("x", type, order, rows, columns).value();
  if (spacing == Spacing::kTight) return layout;
  const int64_t length = layout.line_length();
  const int64_t element_bytes = (BitsOf(type) + 7) / 8;
  if (spacing == Spacing::kAligned) {
    const int64_t unit = kLineBits / std::gcd(kLineBits, int64_t{BitsOf(type)});
    layout.leading_dimension = (length + unit - 1) / unit * unit;
    layout.batch_stride_bytes = layout.lines() * layout.line_stride_bytes();
  } else {
    layout.leading_dimension = length + 1 + length % 2 * 2;
    layout.batch_stride_bytes = layout.lines() * layout.line_stride_bytes() + 3 * element_bytes;
  }
  return layout;
}

void CopyElements(const MatrixLayout& from, const std::byte* source, const MatrixLayout& to,
                  std::byte* target, int64_t batch) {
  for (int64_t i = 0; i < batch; ++i) {
    const std::byte* source_matrix = source + i * from.batch_stride_bytes;
    std::byte* target_matrix = target + i * to.batch_stride_bytes;
    if (from.is_sparse()) {
      std::memcpy(target_matrix, source_matrix,
                  static_cast<size_t>(BytesOf("x", from, 1).value().least));
      continue;
    }
    switch (BitsOf(from.type)) {
      case 64: CopyWords<uint64_t>(from, source_matrix, to, target_matrix); break;
      case 32: CopyWords<uint32_t>(from, source_matrix, to, target_matrix); break;
      case 16: CopyWords<uint16_t>(from, source_matrix, to, target_matrix); break;
      case 8: CopyWords<uint8_t>(from, source_matrix, to, target_matrix); break;
      default: CopyPacked(from, source_matrix, to, target_matrix);
    }
  }
}

std::vector<std::byte> RandomMatrices(const MatrixLayout& layout, int64_t batch,
                                      RandomSource& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(BytesOf("x", layout, batch).value().least));
  for (size_t first = 0; first < bytes.size(); first += 8) {
    const uint64_t word = random.Bits();
    std::memcpy(bytes.data() + first, &word, std::min<size_t>(8, bytes.size() - first));
  }
  return bytes;
}

std::vector<std::byte> PoisonedOutput(const Problem& problem) {
  const int64_t bytes = BytesOf("d", problem.d, problem.batch).value().least;
  return std::vector<std::byte>(static_cast<size_t>(bytes + 2 * kGuardBytes), kPoison);
}

GemmArgs HostArgs(const Product& product, const Target& target, std::vector<std::byte>& output,
                  std::vector<std::byte>& workspace) {
  const Problem& problem = product.problem;
  const bool reads_operands = problem.has_product() && problem.has_output();
  const bool has_output = output.size() > 2 * kGuardBytes;
  return {.problem = problem,
          .target = target,
          .a = DataOf(product.a, reads_operands),
          .b = DataOf(product.b, reads_operands),
          .c = DataOf(product.c, problem.has_c()),
          .bias = DataOf(product.bias, true),
          .a_scale = product.a_scale,
          .b_scale = product.b_scale,
          .d = has_output ? output.data() + kGuardBytes : nullptr,
          .workspace = absl::MakeSpan(workspace),
          .a_factors = DataOf(product.a_factors, reads_operands),
          .b_factors = DataOf(product.b_factors, reads_operands)};
}

}  // namespace gemmd
