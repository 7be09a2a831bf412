// SPDX-License-Identifier: Apache-2.0
//
// Moves elements between matrices and the registers of the lanes that hold them, as
// kernels/mma/fragment.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/mma/fragment.h"
#include "kernels/mma/instruction.h"

namespace gemmd::sim {

// One operand of one instruction as a table. A matrix is the raw bits of its elements, row major;
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

  // A second place of an element.
  struct Copy {
    size_t element;
    Slot slot;
  };

  void MapFragment(const mma::Instruction& instruction, mma::Operand operand);
  void MapSharedMemory(const mma::Instruction& instruction);

  std::vector<Slot> slots_;  // One for each element.
  std::vector<Copy> copies_;
  size_t words_ = 0;
  bool is_wide_;  // Whether elements take two words.
  uint32_t mask_;
};

}  // namespace gemmd::sim
