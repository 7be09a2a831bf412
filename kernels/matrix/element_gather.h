// SPDX-License-Identifier: Apache-2.0
//
// Copies some lines, and some elements of each, out of matrices. Its parts are constexpr functions
// that host and device code compile alike: kernels/cuda/device/operands/gather.cu runs them on
// GPUs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gemmd {

// Element j of line i of the copy is element elements[j] of line lines[i] of the source or, if
// `is_across`, element lines[i] of line elements[j]. The copy has no gaps: its lines begin at
// bytes, and bits after the last element of a line become zero.
struct ElementGather {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  const int64_t* lines = nullptr;     // Null: 0, 1, 2 ...
  const int64_t* elements = nullptr;  // Null: 0, 1, 2 ...
  int64_t line_divisor = 1;           // Line lines[i] / line_divisor is meant.
  int64_t matrices = 1;
  int64_t line_count = 0;  // Of each matrix of the copy.
  int64_t element_count = 0;
  int64_t from_line_bytes = 0;    // From one line of the source to the next.
  int64_t from_matrix_bytes = 0;  // From one matrix of the source to the next,
  int64_t to_matrix_bytes = 0;    // and of the copy.
  int32_t bits = 8;               // Bits of an element: 64, 32, 16, 8, 6, 4 or 1.
  bool is_across = false;

  constexpr int64_t to_line_bytes() const { return (element_count * bits + 7) / 8; }
  // The copy is made in units: an element, or eight elements of less than a byte.
  constexpr int64_t units_of_line() const {
    return bits >= 8 ? element_count : (element_count + 7) / 8;
  }
  constexpr int64_t units() const { return matrices * line_count * units_of_line(); }
};

// The bits of one element of a line, which may span two bytes. Byte: const std::byte.
template <typename Byte>
constexpr uint64_t GatheredBits(const Byte* line, int64_t element, int bits) {
  const Byte* const first = line + element * bits / 8;
  const auto shift = static_cast<int>(element * bits % 8);
  uint64_t word = 0;
  for (int i = 0; 8 * i < shift + bits; ++i)
    word |= uint64_t{static_cast<uint8_t>(first[i])} << 8 * i;
  return bits == 64 ? word : word >> shift & ((uint64_t{1} << bits) - 1);
}

// Copies one unit.
constexpr void GatherUnit(const ElementGather& gather, int64_t unit) {
  const int64_t units = gather.units_of_line();
  const int64_t line = unit / units % gather.line_count;
  const int64_t matrix = unit / units / gather.line_count;
  const int64_t from_line =
      (gather.lines == nullptr ? line : gather.lines[line]) / gather.line_divisor;
  const std::byte* const from = gather.from + matrix * gather.from_matrix_bytes;
  const auto bits_at = [&](int64_t index) {
    const int64_t element = gather.elements == nullptr ? index : gather.elements[index];
    return gather.is_across
               ? GatheredBits(from + element * gather.from_line_bytes, from_line, gather.bits)
               : GatheredBits(from + from_line * gather.from_line_bytes, element, gather.bits);
  };
  const int64_t at = unit % units;
  std::byte* to = gather.to + matrix * gather.to_matrix_bytes + line * gather.to_line_bytes();
  uint64_t word = 0;
  int64_t bytes = 0;
  if (gather.bits >= 8) {
    bytes = gather.bits / 8;
    word = bits_at(at);
  } else {
    const int64_t left = gather.element_count - 8 * at;
    const auto count = static_cast<int>(left < 8 ? left : 8);
    for (int i = 0; i < count; ++i) word |= bits_at(8 * at + i) << i * gather.bits;
    bytes = (count * gather.bits + 7) / 8;
  }
  to += gather.bits >= 8 ? at * bytes : at * gather.bits;
  for (int64_t i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(word >> 8 * i);
}

// Copies everything, on the calling thread.
void GatherElements(const ElementGather& gather);

}  // namespace gemmd
