// SPDX-License-Identifier: Apache-2.0
//
// The matrices of one product of an instruction while a family of operands fills them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/bench/record/float_source.h"
#include "kernels/bench/record/random_numbers.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

// Raw bits of elements, row major.
struct ProductOperands {
  std::vector<uint64_t> a;  // m x a_columns; a sparse A as it is held.
  std::vector<uint64_t> b;  // k x n.
  std::vector<uint64_t> c;  // m x n.
};

class OperandFiller {
 public:
  // `a_k` is the logical k of each element of A (m x a_columns).
  OperandFiller(const mma::Instruction& instruction, std::span<const int> a_k,
                RandomNumbers& random);

  const mma::Instruction& instruction() const { return instruction_; }
  RandomNumbers& random() { return random_; }
  int depth() const { return instruction_.a_columns(); }  // Products of one sum.

  // `make(row, i)`, `make(k, column)` and `make(row, column)` return the elements.
  template <typename Make>
  void FillA(Make make) {
    Fill(instruction_.m, depth(), make, operands_.a);
  }
  template <typename Make>
  void FillB(Make make) {
    Fill(instruction_.k, instruction_.n, make, operands_.b);
  }
  template <typename Make>
  void FillC(Make make) {
    Fill(instruction_.m, instruction_.n, make, operands_.c);
  }

  // The logical k of an element of A.
  int LogicalK(int row, int i) const { return a_k_[Index(row, i, depth())]; }
  // Whatever the metadata says, elements 2i and 2i + 1 of a row of A meet elements of B within one
  // stretch along k of this length, which starts at a multiple of it.
  int PairStretch() const;

  // The sum of products without C, computed in f64.
  double Sum(int row, int column) const;

  const ProductOperands& operands() const { return operands_; }

 private:
  static size_t Index(int row, int column, int columns) {
    return static_cast<size_t>(row * columns + column);
  }

  template <typename Make>
  static void Fill(int rows, int columns, Make make, std::vector<uint64_t>& matrix) {
    matrix.resize(static_cast<size_t>(rows * columns));
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; ++column) {
        matrix[Index(row, column, columns)] = make(row, column);
      }
    }
  }

  const mma::Instruction& instruction_;
  const std::span<const int> a_k_;
  RandomNumbers& random_;
  ProductOperands operands_;
};

// Sources of the three operands, for families of floating-point types.
struct FloatOperands {
  FloatOperands(const mma::Instruction& instruction, RandomNumbers& random)
      : a(instruction.a, random), b(instruction.b, random), c(instruction.c, random) {}

  FloatSource a;
  FloatSource b;
  FloatSource c;
};

}  // namespace gemmd
