// SPDX-License-Identifier: Apache-2.0
//
// Multiplies the matrices of one instruction on one chip, element by element as the specification
// (kernels/mma/arithmetic.h) says. This is the plain implementation; the vector code must agree
// with it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/mma/arithmetic.h"
#include "kernels/mma/instruction.h"
#include "kernels/sim/number.h"
#include "kernels/sim/scalar.h"

namespace gemmd::sim {

// Raw bits of elements, row major. Independent products follow each other.
struct OperandMatrices {
  std::span<const uint64_t> a;  // m x a_columns.
  std::span<const int> a_k;     // The logical k of each element of a sparse A; empty where dense.
  std::span<const uint64_t> b;  // k x n.
  std::span<const uint64_t> c;  // m x n.
  // Factors of blocks along k: m x scales and scales x n. Empty: all are one.
  std::span<const uint8_t> a_factors;
  std::span<const uint8_t> b_factors;
};

// Threads: one call at a time, because it has scratch memory.
class MatrixUnit {
 public:
  // The chip must have the instruction.
  MatrixUnit(const mma::Instruction& instruction, mma::Chip chip);

  const mma::Instruction& instruction() const { return instruction_; }

  // Writes the m x n D of each product of the instruction, one after the other.
  void Multiply(const OperandMatrices& operands, std::span<uint64_t> d);

 private:
  // One of the independent products.
  struct View {
    std::span<const uint64_t> a;
    std::span<const uint64_t> b;
    std::span<const uint64_t> c;
    std::span<const uint8_t> a_factors;
    std::span<const uint8_t> b_factors;
  };

  void MultiplyOne(const View& view, std::span<const int> sparse_k, std::span<uint64_t> d);
  void OrderProducts(std::span<const int> a_k);
  void DecodeOperands(const View& view);
  uint64_t Element(const View& view, int row, int column, uint64_t c);
  uint32_t FusedChain(const View& view, int row, int column, uint32_t c);
  uint32_t ScaledGroups(const View& view, int row, int column, uint32_t c);
  uint32_t Fma(const View& view, int row, int column, uint32_t c) const;
  uint64_t FmaF64(const View& view, int row, int column, uint64_t c) const;
  int64_t ExactSum(const View& view, int row, int column) const;
  Factor FactorAt(std::span<const uint8_t> factors, int index) const;

  const mma::Instruction instruction_;
  const mma::Arithmetic arithmetic_;
  const int depth_;  // Products that are summed into one element.
  const bool is_fused_;

  std::vector<int> dense_k_;
  // For the current row: the logical k of each product, and the places of the products in the order
  // in which blocks take them.
  std::span<const int> row_k_;
  std::vector<int> places_;
  // Operands taken apart; B lies column after column.
  std::vector<Number> a_numbers_;
  std::vector<Number> b_numbers_;
  std::vector<Product> products_;
};

}  // namespace gemmd::sim
