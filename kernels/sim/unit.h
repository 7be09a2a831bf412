// SPDX-License-Identifier: Apache-2.0
//
// One instruction on one chip: its matrices (MatrixUnit), the registers of the lanes that hold them
// (OperandMap), and both together (Unit). This is the plain implementation; the vector code must
// agree with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/mma/arithmetic.h"
#include "kernels/mma/fragment.h"
#include "kernels/mma/instruction.h"
#include "kernels/sim/scalar.h"

namespace gemmd::sim {

// Raw bits of elements, row major. Independent products follow each other.
struct OperandMatrices {
  std::span<const uint64_t> a;  // m x a_columns.
  std::span<const int> a_k;     // The logical k of each element of a sparse A; empty if dense.
  std::span<const uint64_t> b;  // k x n.
  std::span<const uint64_t> c;  // m x n.
  // Factors of blocks along k: m x scales and scales x n. Empty: all are 1.
  std::span<const uint8_t> a_factors;
  std::span<const uint8_t> b_factors;
};

// Multiplies the matrices of one instruction, element by element as the specification
// (kernels/mma/arithmetic.h) says.
// Threads: one call at a time, because the object has scratch memory.
class MatrixUnit {
 public:
  // The chip must have the instruction.
  MatrixUnit(const mma::Instruction& instruction, mma::Chip chip);

  const mma::Instruction& instruction() const { return instruction_; }

  // Writes the m x n D of each product of the instruction, one after the other.
  void Multiply(const OperandMatrices& operands, std::span<uint64_t> d);

 private:
  // `view`: one of the independent products.
  void MultiplyOne(const OperandMatrices& view, std::span<uint64_t> d);
  void OrderProducts(std::span<const int> a_k);
  void DecodeOperands(const OperandMatrices& view);
  uint64_t Element(const OperandMatrices& view, int row, int column, uint64_t c);
  uint32_t FusedChain(const OperandMatrices& view, int row, int column, uint32_t c);
  uint32_t ScaledGroups(const OperandMatrices& view, int row, int column, uint32_t c);
  uint32_t Fma(const OperandMatrices& view, int row, int column, uint32_t c) const;
  uint64_t FmaF64(const OperandMatrices& view, int row, int column, uint64_t c) const;
  int64_t ExactSum(const OperandMatrices& view, int row, int column) const;
  Factor FactorAt(std::span<const uint8_t> factors, int index) const;

  const mma::Instruction instruction_;
  const mma::Arithmetic arithmetic_;
  const int depth_;  // Products that are summed into one element.
  const bool is_fused_;

  std::vector<int> dense_k_;
  // For the current row: the logical k of each product, and the places of the products in the order
  // of the blocks.
  std::span<const int> row_k_;
  std::vector<int> places_;
  // Decoded operands; B is stored column by column.
  std::vector<Number> a_numbers_;
  std::vector<Number> b_numbers_;
  std::vector<Product> products_;
};

// Moves one operand between its matrix and the registers of the lanes that hold it, using a table
// built from kernels/mma/fragment.h. A matrix is the raw bits of its elements, row major;
// independent products follow each other. Registers are 32-bit words, lane by lane; for B of a
// warpgroup they are shared memory, column after column, packed low bits first.
class OperandMap {
 public:
  OperandMap(const mma::Instruction& instruction, mma::Operand operand);

  size_t elements() const { return slots_.size(); }  // In all products.
  size_t words() const { return words_; }            // In all lanes.

  // Copies a matrix to registers and writes every word. Word is uint32_t or uint64_t (f64 needs the
  // latter).
  template <typename Word>
  void Scatter(const Word* matrix, std::span<uint32_t> registers) const;

  // Copies registers to a matrix.
  template <typename Word>
  void Gather(std::span<const uint32_t> registers, Word* matrix) const;

 private:
  // Where the bits of an element are.
  struct Slot {
    uint32_t word;
    uint32_t shift;
  };

  void MapFragment(const mma::Instruction& instruction, mma::Operand operand);
  void MapSharedMemory(const mma::Instruction& instruction);

  std::vector<Slot> slots_;                      // One for each element.
  std::vector<std::pair<size_t, Slot>> copies_;  // Second places of elements.
  size_t words_ = 0;
  bool is_wide_;  // Whether elements take two words.
  uint32_t mask_;
};

// The registers of every lane, 32-bit words lane by lane (kernels/mma/fragment.h).
struct OperandRegisters {
  std::span<const uint32_t> a;
  std::span<const uint32_t> b;  // For a warpgroup: shared memory, column after column.
  std::span<const uint32_t> c;
  std::span<const uint32_t> metadata;  // One word a lane; sparse only.
  int selector = 0;                    // Sparse only.
  std::span<const uint8_t> a_factors;  // Laid out as in OperandMatrices.
  std::span<const uint8_t> b_factors;
};

// The logical k of each element of a sparse A (m x a_columns), from the metadata registers.
void DecodeMetadata(const mma::Instruction& instruction, std::span<const uint32_t> metadata,
                    int selector, std::span<int> a_k);

// The metadata registers for a sparse A whose elements have the given logical k. Lanes without
// metadata get zero.
void EncodeMetadata(const mma::Instruction& instruction, std::span<const int> a_k, int selector,
                    std::span<uint32_t> metadata);

// Registers in, registers out. Threads: one call at a time, because the object has scratch memory.
class Unit {
 public:
  // The chip must have the instruction.
  Unit(const mma::Instruction& instruction, mma::Chip chip);

  const mma::Instruction& instruction() const { return matrix_unit_.instruction(); }
  const OperandMap& a_map() const { return a_map_; }
  const OperandMap& b_map() const { return b_map_; }
  const OperandMap& c_map() const { return c_map_; }
  const OperandMap& d_map() const { return d_map_; }

  // Executes the instruction; writes every word of `d`.
  void Execute(const OperandRegisters& operands, std::span<uint32_t> d);

 private:
  MatrixUnit matrix_unit_;
  const OperandMap a_map_;
  const OperandMap b_map_;
  const OperandMap c_map_;
  const OperandMap d_map_;
  std::vector<uint64_t> a_;
  std::vector<uint64_t> b_;
  std::vector<uint64_t> c_;
  std::vector<uint64_t> d_;
  std::vector<int> a_k_;
};

}  // namespace gemmd::sim
