// SPDX-License-Identifier: Apache-2.0
//
// One instruction on one chip: registers in, registers out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/mma/fragment.h"
#include "kernels/mma/metadata.h"
#include "kernels/sim/matrix_unit.h"
#include "kernels/sim/registers.h"

namespace gemmd::sim {

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

// The metadata registers for a sparse A whose elements have the given logical k. Lanes that hold
// nothing get zero.
void EncodeMetadata(const mma::Instruction& instruction, std::span<const int> a_k, int selector,
                    std::span<uint32_t> metadata);

// Threads: one call at a time, because it has scratch memory.
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
