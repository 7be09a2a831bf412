// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/record/operand_words.h"

#include <algorithm>

#include "kernels/sim/unit.h"

namespace gemmd {
namespace {

using mma::Instruction;
using mma::Operand;

bool IsColumnMajor(const Instruction& instruction, Operand operand) {
  if (operand == Operand::kA) return instruction.a_layout == mma::Layout::kColumn;
  return operand == Operand::kB && instruction.b_layout == mma::Layout::kColumn;
}

// Calls visit(element, bit) with the position of the first bit of each element in memory.
template <typename Visit>
void VisitMemory(const Instruction& instruction, Operand operand, Visit visit) {
  const auto rows = static_cast<size_t>(mma::RowsOf(instruction, operand));
  const auto columns = static_cast<size_t>(mma::ColumnsOf(instruction, operand));
  const auto bits = static_cast<size_t>(BitsOf(mma::TypeOf(instruction, operand)));
  const bool is_column_major = IsColumnMajor(instruction, operand);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      const size_t place = is_column_major ? column * rows + row : row * columns + column;
      visit(row * columns + column, place * bits);
    }
  }
}

void WriteMemory(const Instruction& instruction, Operand operand,
                 const std::vector<uint64_t>& matrix, std::span<uint32_t> words) {
  const bool is_wide = BitsOf(mma::TypeOf(instruction, operand)) == 64;
  std::fill(words.begin(), words.end(), 0);
  VisitMemory(instruction, operand, [&](size_t element, size_t bit) {
    words[bit / 32] |= static_cast<uint32_t>(matrix[element] << bit % 32);
    if (is_wide) words[bit / 32 + 1] = static_cast<uint32_t>(matrix[element] >> 32);
  });
}

std::vector<uint64_t> ReadMemory(const Instruction& instruction, Operand operand,
                                 std::span<const uint32_t> words) {
  const int bits = BitsOf(mma::TypeOf(instruction, operand));
  std::vector<uint64_t> matrix(static_cast<size_t>(mma::RowsOf(instruction, operand) *
                                                   mma::ColumnsOf(instruction, operand)));
  VisitMemory(instruction, operand, [&](size_t element, size_t bit) {
    if (bits == 64) {
      matrix[element] = words[bit / 32] | uint64_t{words[bit / 32 + 1]} << 32;
    } else {
      const uint32_t mask = bits == 32 ? ~0u : (1u << bits) - 1;
      matrix[element] = words[bit / 32] >> bit % 32 & mask;
    }
  });
  return matrix;
}

}  // namespace

size_t WordsOf(const Instruction& instruction, Operand operand) {
  if (instruction.family != mma::Family::kWmma) {
    return sim::OperandMap(instruction, operand).words();
  }
  return static_cast<size_t>(mma::RowsOf(instruction, operand) *
                             mma::ColumnsOf(instruction, operand) *
                             BitsOf(mma::TypeOf(instruction, operand)) / 32);
}

void Pack(const Instruction& instruction, Operand operand, const std::vector<uint64_t>& matrix,
          std::span<uint32_t> words) {
  if (instruction.family == mma::Family::kWmma) {
    WriteMemory(instruction, operand, matrix, words);
  } else {
    sim::OperandMap(instruction, operand).Scatter(matrix.data(), words);
  }
}

std::vector<uint64_t> Unpack(const Instruction& instruction, Operand operand,
                             std::span<const uint32_t> words) {
  if (instruction.family == mma::Family::kWmma) return ReadMemory(instruction, operand, words);
  const sim::OperandMap map(instruction, operand);
  std::vector<uint64_t> matrix(map.elements());
  map.Gather(words, matrix.data());
  return matrix;
}

}  // namespace gemmd
