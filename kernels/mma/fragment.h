// SPDX-License-Identifier: Apache-2.0
//
// Which matrix element each lane holds in each place: (lane, element) -> (row, column).
//
// With lane = 4g + t, E elements to a 32-bit register and i counting a lane's elements low bits
// first, one rule gives every warp-level operand of 16 x K, K x 8 and 16 x 8:
//   A  (g + 8 (i/E mod 2), tE + i mod E + 4E (i / 2E))
//   B  (tE + i mod E + 4E (i/E), g)
//   C  (g + 8 (i/2), 2t + i mod 2)
// An A of 8 rows leaves out the second half of the rows; a sparse A is its compressed matrix; a
// warpgroup stacks four warps along the rows and puts 8 columns after 8 columns. m8n8k4 with f16
// has rules of its own. B of a warpgroup is read from shared memory and has no fragment.
//
// Source: PTX ISA 9.0, 9.7.14.5 and 9.7.14.6.2. PTX leaves wmma open: its rule is how sm_90 was
// seen to load it, as two products of mma side by side.
#pragma once

#include <cstdint>

#include "kernels/mma/instruction.h"

namespace gemmd::mma {

enum class Operand : uint8_t { kA, kB, kC, kD };

// The place of one element. `product` counts the independent products of an instruction.
struct Position {
  int row = 0;
  int column = 0;
  int product = 0;

  constexpr bool operator==(const Position&) const = default;
};

constexpr ElementType TypeOf(const Instruction& instruction, Operand operand) {
  switch (operand) {
    case Operand::kA: return instruction.a;
    case Operand::kB: return instruction.b;
    case Operand::kC: return instruction.c;
    case Operand::kD: return instruction.d;
  }
  return instruction.a;
}

// The shape of an operand as held in registers.
constexpr int RowsOf(const Instruction& instruction, Operand operand) {
  return operand == Operand::kB ? instruction.k : instruction.m;
}
constexpr int ColumnsOf(const Instruction& instruction, Operand operand) {
  return operand == Operand::kA ? instruction.a_columns() : instruction.n;
}

// Bits that an element occupies in a register: more than its width if fp6 and fp4 occupy bytes.
constexpr int ContainerBits(const Instruction& instruction, Operand operand) {
  const bool is_in_bytes = instruction.kind == Kind::kF8f6f4 || instruction.kind == Kind::kMxf8f6f4;
  const bool is_factor = operand == Operand::kA || operand == Operand::kB;
  return is_in_bytes && is_factor ? 8 : BitsOf(TypeOf(instruction, operand));
}

// Where the element's bits begin in its container: a byte holds fp4 in bits 2 to 5.
constexpr int ContainerShift(const Instruction& instruction, Operand operand) {
  return ContainerBits(instruction, operand) == 8 && BitsOf(TypeOf(instruction, operand)) == 4 ? 2
                                                                                               : 0;
}

// How often fragments repeat elements of A and B: wmma fragments of f16 hold each element in two
// lanes.
constexpr int CopiesOf(const Instruction& instruction, Operand operand) {
  const bool is_factor = operand == Operand::kA || operand == Operand::kB;
  const bool is_repeated =
      instruction.family == Family::kWmma && instruction.a == ElementType::kF16 && is_factor;
  if (!is_repeated) return 1;
  const int elements = RowsOf(instruction, operand) * ColumnsOf(instruction, operand) / 32;
  return 16 / elements;  // PTX gives every such fragment eight registers.
}

// Elements that one lane holds; 0 for B of a warpgroup.
constexpr int ElementsPerLane(const Instruction& instruction, Operand operand) {
  if (instruction.is_warpgroup() && operand == Operand::kB) return 0;
  return RowsOf(instruction, operand) * ColumnsOf(instruction, operand) * instruction.products() *
         CopiesOf(instruction, operand) / instruction.lanes();
}

// 32-bit words that one lane holds; an f64 takes two, low word first.
constexpr int WordsPerLane(const Instruction& instruction, Operand operand) {
  return ElementsPerLane(instruction, operand) * ContainerBits(instruction, operand) / 32;
}

namespace layout {

constexpr Position RuleA(int rows, int e, int lane, int i) {
  const int g = lane / 4;
  const int t = lane % 4;
  if (rows == 8) return {g, t * e + i % e + 4 * e * (i / e)};
  return {g + 8 * (i / e % 2), t * e + i % e + 4 * e * (i / (2 * e))};
}

constexpr Position RuleB(int e, int lane, int i) {
  return {lane % 4 * e + i % e + 4 * e * (i / e), lane / 4};
}

constexpr Position RuleC(int lane, int i) { return {lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2}; }

// Lanes 4q to 4q+3 and 16+4q to 19+4q multiply the q-th pair of 8 x 4 and 4 x 8.
constexpr Position M8n8k4(const Instruction& instruction, Operand operand, int lane, int i) {
  const int product = lane % 16 / 4;
  const int half = lane < 16 ? 0 : 4;
  const int line = lane % 4;
  if (operand == Operand::kA) {
    return instruction.a_layout == Layout::kRow ? Position{line + half, i, product}
                                                : Position{i + half, line, product};
  }
  if (operand == Operand::kB) {
    return instruction.b_layout == Layout::kRow ? Position{line, i + half, product}
                                                : Position{i, line + half, product};
  }
  if (TypeOf(instruction, operand) == ElementType::kF16) return {line + half, i, product};
  return {half + (lane & 1) + (i & 2), (i & 4) + (lane & 2) + (i & 1), product};
}

constexpr Position Warpgroup(Operand operand, int e, int lane, int i) {
  const int warp = lane / 32;
  Position position;
  if (operand == Operand::kA) {
    position = RuleA(16, e, lane % 32, i);
  } else {
    position = RuleC(lane % 32, i % 4);
    position.column += i / 4 * 8;
  }
  position.row += 16 * warp;
  return position;
}

// A wmma of 16 x 16 is two mma of 16 x 8 side by side; one of 32 x 8 is two mma, one above the
// other. A wmma of 8 x 32 is that of 32 x 8 transposed, with A and B exchanged.
constexpr Position Wmma(const Instruction& instruction, Operand operand, int e, int lane, int i) {
  if (instruction.m == 8 && instruction.n == 8) {
    if (operand == Operand::kA) return RuleA(8, e, lane, i);
    return operand == Operand::kB ? RuleB(e, lane, i) : RuleC(lane, i);
  }
  const bool is_transposed = instruction.m == 8;
  Position position;
  if (operand == Operand::kC || operand == Operand::kD) {
    position = RuleC(lane, i % 4);
    (instruction.m == 16 ? position.column : position.row) +=
        (instruction.m == 16 ? 8 : 16) * (i / 4);
  } else if ((operand == Operand::kA) != is_transposed) {
    const int elements = instruction.k / 2;  // Elements of one mma.
    const int rows = is_transposed ? instruction.n : instruction.m;
    position = RuleA(16, e, lane, i % elements);
    position.row += 16 * (i / elements % (rows / 16));
  } else {
    const int elements = instruction.k / 4;
    const int columns = is_transposed ? instruction.m : instruction.n;
    position = RuleB(e, lane, i % elements);
    position.column += 8 * (i / elements % (columns / 8));
  }
  return is_transposed ? Position{position.column, position.row} : position;
}

}  // namespace layout

// The matrix position of element `i` of a lane (a thread of the warpgroup).
constexpr Position PositionOf(const Instruction& instruction, Operand operand, int lane, int i) {
  const int bits = ContainerBits(instruction, operand);
  const int e = bits >= 32 ? 1 : 32 / bits;
  if (instruction.products() == 4) return layout::M8n8k4(instruction, operand, lane, i);
  if (instruction.is_warpgroup()) return layout::Warpgroup(operand, e, lane, i);
  if (instruction.family == Family::kWmma) return layout::Wmma(instruction, operand, e, lane, i);
  switch (operand) {
    case Operand::kA: return layout::RuleA(instruction.m, e, lane, i);
    case Operand::kB: return layout::RuleB(e, lane, i);
    default: return layout::RuleC(lane, i);
  }
}

// The layout of the metadata of a sparse A: which bits of which lane's register describe which
// group of which row.
//
// A group of 4 elements along k (tf32: 2, 4-bit types: 8) has one nibble. It holds two 2-bit
// indices, of elements (2:4) or of adjacent pairs (4:8), the lower element's first. 1:2 has only
// two nibbles: 0x4 keeps the lower element, 0xe the upper one.
//
// Source: PTX ISA 9.0, 9.7.14.6.1 and 9.7.14.6.2; wgmma.sp was observed on sm_90 (tests/vectors).
//
// One nibble of metadata.
struct MetadataField {
  int lane = 0;
  int first_bit = 0;

  constexpr bool operator==(const MetadataField&) const = default;
};

constexpr int MetadataGroups(const Instruction& instruction) {
  return instruction.k / GroupSize(SparsityOf(instruction));
}

// The field that describes `group` (0 .. MetadataGroups - 1) of `row` (0 .. m - 1). Lanes of a quad
// that the selector excludes hold no metadata.
constexpr MetadataField MetadataFieldOf(const Instruction& instruction, int selector, int row,
                                        int group) {
  const int groups = MetadataGroups(instruction);
  const int warp = row / 16;
  const int g = row % 8;
  const int half = row % 16 / 8;
  const bool is_wide = BitsOf(instruction.a) >= 16;
  int t = 0;
  int nibble = 0;
  if (is_wide && groups == 4) {
    t = selector;
    nibble = 4 * half + group;
  } else if (is_wide) {
    t = 2 * selector + group / 4;
    nibble = 4 * half + group % 4;
  } else if (groups == 8) {
    t = 2 * selector + half;
    nibble = group;
  } else {
    t = 2 * (group / 8) + half;
    nibble = group % 8;
  }
  return {32 * warp + 4 * g + t, 4 * nibble};
}

// The group that nibble `nibble` of a lane's register describes: the inverse of MetadataFieldOf.
// Nibbles 0 to 3 describe consecutive groups of one row, and so do nibbles 4 to 7.
struct MetadataGroup {
  bool is_held = false;  // Whether the instruction reads the nibble.
  int row = 0;
  int group = 0;
};

constexpr MetadataGroup MetadataGroupOf(const Instruction& instruction, int selector, int lane,
                                        int nibble) {
  const int groups = MetadataGroups(instruction);
  const int first_row = lane / 32 * 16 + lane % 32 / 4;
  const int t = lane % 4;
  const bool is_wide = BitsOf(instruction.a) >= 16;
  if (is_wide && groups == 4) {
    return {t == selector, first_row + nibble / 4 * 8, nibble % 4};
  }
  if (is_wide) {
    return {t / 2 == selector, first_row + nibble / 4 * 8, t % 2 * 4 + nibble % 4};
  }
  if (groups == 8) return {t / 2 == selector, first_row + t % 2 * 8, nibble};
  return {true, first_row + t % 2 * 8, t / 2 * 8 + nibble};
}

inline constexpr unsigned kKeepsLower = 0x4;
inline constexpr unsigned kKeepsUpper = 0xe;

// The logical k, counted from the start of the group, of the element that a group keeps in place
// `index` (0 .. GroupSize/2 - 1), where `nibble` is the group's metadata.
constexpr int KeptElement(Sparsity sparsity, unsigned nibble, int index) {
  switch (sparsity) {
    case Sparsity::kNone: return index;
    case Sparsity::kTwoOfFour: return static_cast<int>(nibble >> (2 * index) & 3);
    case Sparsity::kOneOfTwo: return nibble == kKeepsUpper ? 1 : 0;
    case Sparsity::kFourOfEight:
      return static_cast<int>(2 * (nibble >> (2 * (index / 2)) & 3)) + index % 2;
  }
  return index;
}

// The nibble of a group that keeps the elements from `first` to `last`, which are places in the
// group: the inverse of KeptElement.
constexpr unsigned NibbleOf(Sparsity sparsity, int first, int last) {
  switch (sparsity) {
    case Sparsity::kNone: return 0;
    case Sparsity::kTwoOfFour: return static_cast<unsigned>(first | last << 2);
    case Sparsity::kOneOfTwo: return first == 0 ? kKeepsLower : kKeepsUpper;
    case Sparsity::kFourOfEight: return static_cast<unsigned>(first / 2 | last / 2 << 2);
  }
  return 0;
}

}  // namespace gemmd::mma
