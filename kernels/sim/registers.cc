// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/registers.h"

#include <algorithm>

namespace gemmd::sim {

OperandMap::OperandMap(const mma::Instruction& instruction, mma::Operand operand)
    : is_wide_(BitsOf(mma::TypeOf(instruction, operand)) == 64) {
  const int bits = BitsOf(mma::TypeOf(instruction, operand));
  mask_ = bits >= 32 ? ~0u : (1u << bits) - 1;
  if (instruction.is_warpgroup() && operand == mma::Operand::kB) {
    MapSharedMemory(instruction);
  } else {
    MapFragment(instruction, operand);
  }
}

void OperandMap::MapFragment(const mma::Instruction& instruction, mma::Operand operand) {
  constexpr Slot kUnset = {~0u, 0};
  const int rows = mma::RowsOf(instruction, operand);
  const int columns = mma::ColumnsOf(instruction, operand);
  const int bits = mma::ContainerBits(instruction, operand);
  const int words_per_lane = mma::WordsPerLane(instruction, operand);
  words_ = static_cast<size_t>(words_per_lane * instruction.lanes());
  slots_.assign(static_cast<size_t>(rows * columns * instruction.products()), kUnset);
  for (int lane = 0; lane < instruction.lanes(); ++lane) {
    for (int i = 0; i < mma::ElementsPerLane(instruction, operand); ++i) {
      const mma::Position position = mma::PositionOf(instruction, operand, lane, i);
      const auto element =
          static_cast<size_t>((position.product * rows + position.row) * columns + position.column);
      const int first_bit = i * bits + mma::ContainerShift(instruction, operand);
      const Slot slot = {static_cast<uint32_t>(lane * words_per_lane + first_bit / 32),
                         static_cast<uint32_t>(first_bit % 32)};
      if (slots_[element].word == kUnset.word) {
        slots_[element] = slot;
      } else {
        copies_.push_back({element, slot});
      }
    }
  }
}

void OperandMap::MapSharedMemory(const mma::Instruction& instruction) {
  const int bits = BitsOf(instruction.b);
  words_ = static_cast<size_t>(instruction.k * instruction.n * bits / 32);
  slots_.reserve(static_cast<size_t>(instruction.k * instruction.n));
  for (int row = 0; row < instruction.k; ++row) {
    for (int column = 0; column < instruction.n; ++column) {
      const int first_bit = (column * instruction.k + row) * bits;
      slots_.push_back(
          {static_cast<uint32_t>(first_bit / 32), static_cast<uint32_t>(first_bit % 32)});
    }
  }
}

template <typename Word>
void OperandMap::Scatter(const Word* matrix, std::span<uint32_t> registers) const {
  if constexpr (sizeof(Word) == 8) {
    if (is_wide_) {
      for (size_t i = 0; i < slots_.size(); ++i) {
        registers[slots_[i].word] = static_cast<uint32_t>(matrix[i]);
        registers[slots_[i].word + 1] = static_cast<uint32_t>(matrix[i] >> 32);
      }
      return;
    }
  }
  std::fill_n(registers.begin(), words_, 0);
  for (size_t i = 0; i < slots_.size(); ++i) {
    registers[slots_[i].word] |= (static_cast<uint32_t>(matrix[i]) & mask_) << slots_[i].shift;
  }
  for (const Copy& copy : copies_) {
    registers[copy.slot.word] |= (static_cast<uint32_t>(matrix[copy.element]) & mask_)
                                 << copy.slot.shift;
  }
}

template <typename Word>
void OperandMap::Gather(std::span<const uint32_t> registers, Word* matrix) const {
  if constexpr (sizeof(Word) == 8) {
    if (is_wide_) {
      for (size_t i = 0; i < slots_.size(); ++i) {
        matrix[i] = registers[slots_[i].word] | uint64_t{registers[slots_[i].word + 1]} << 32;
      }
      return;
    }
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    matrix[i] = registers[slots_[i].word] >> slots_[i].shift & mask_;
  }
}

template void OperandMap::Scatter(const uint32_t*, std::span<uint32_t>) const;
template void OperandMap::Scatter(const uint64_t*, std::span<uint32_t>) const;
template void OperandMap::Gather(std::span<const uint32_t>, uint32_t*) const;
template void OperandMap::Gather(std::span<const uint32_t>, uint64_t*) const;

}  // namespace gemmd::sim
