// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/unit.h"

#include <algorithm>

namespace gemmd::sim {
namespace {

using mma::Operand;

void Gather(const OperandMap& map, std::span<const uint32_t> registers,
            std::vector<uint64_t>& matrix) {
  matrix.resize(map.elements());
  map.Gather(registers, matrix.data());
}

}  // namespace

void DecodeMetadata(const mma::Instruction& instruction, std::span<const uint32_t> metadata,
                    int selector, std::span<int> a_k) {
  const mma::Sparsity sparsity = mma::SparsityOf(instruction);
  const int group_size = mma::GroupSize(sparsity);
  const int kept = group_size / 2;
  auto next = a_k.begin();
  for (int row = 0; row < instruction.m; ++row) {
    for (int group = 0; group < mma::MetadataGroups(instruction); ++group) {
      const mma::MetadataField field = mma::MetadataFieldOf(instruction, selector, row, group);
      const uint32_t nibble = metadata[static_cast<size_t>(field.lane)] >> field.first_bit & 15;
      for (int i = 0; i < kept; ++i) {
        *next++ = group * group_size + mma::KeptElement(sparsity, nibble, i);
      }
    }
  }
}

void EncodeMetadata(const mma::Instruction& instruction, std::span<const int> a_k, int selector,
                    std::span<uint32_t> metadata) {
  const mma::Sparsity sparsity = mma::SparsityOf(instruction);
  const int group_size = mma::GroupSize(sparsity);
  const int kept = group_size / 2;
  std::fill(metadata.begin(), metadata.end(), 0);
  auto next = a_k.begin();
  for (int row = 0; row < instruction.m; ++row) {
    for (int group = 0; group < mma::MetadataGroups(instruction); ++group, next += kept) {
      const mma::MetadataField field = mma::MetadataFieldOf(instruction, selector, row, group);
      const uint32_t nibble = mma::NibbleOf(sparsity, *next - group * group_size,
                                            *(next + kept - 1) - group * group_size);
      metadata[static_cast<size_t>(field.lane)] |= nibble << field.first_bit;
    }
  }
}

Unit::Unit(const mma::Instruction& instruction, mma::Chip chip)
    : matrix_unit_(instruction, chip),
      a_map_(instruction, Operand::kA),
      b_map_(instruction, Operand::kB),
      c_map_(instruction, Operand::kC),
      d_map_(instruction, Operand::kD) {}

void Unit::Execute(const OperandRegisters& operands, std::span<uint32_t> d) {
  Gather(a_map_, operands.a, a_);
  Gather(b_map_, operands.b, b_);
  Gather(c_map_, operands.c, c_);
  if (instruction().is_sparse()) {
    a_k_.resize(a_.size());
    DecodeMetadata(instruction(), operands.metadata, operands.selector, a_k_);
  }
  d_.resize(d_map_.elements());
  matrix_unit_.Multiply({.a = a_,
                         .a_k = a_k_,
                         .b = b_,
                         .c = c_,
                         .a_factors = operands.a_factors,
                         .b_factors = operands.b_factors},
                        d_);
  d_map_.Scatter(d_.data(), d);
}

}  // namespace gemmd::sim
