// SPDX-License-Identifier: Apache-2.0
//
// Where the metadata of a sparse A lies: which bits of which lane's register tell what each group
// of each row keeps.
//
// A group of 4 elements along k (tf32: 2, 4-bit types: 8) has one nibble. It holds two 2-bit
// indices, of elements (2:4) or of adjacent pairs (4:8), the lower element's first. 1:2 has only
// two nibbles: 0x4 keeps the lower element, 0xe the upper one.
//
// Source: PTX ISA 9.0, 9.7.14.6.1 and 9.7.14.6.2; wgmma.sp was observed on sm_90 (tests/vectors).
#pragma once

#include "kernels/mma/instruction.h"

namespace gemmd::mma {

// One nibble of metadata.
struct MetadataField {
  int lane = 0;
  int first_bit = 0;

  constexpr bool operator==(const MetadataField&) const = default;
};

constexpr int MetadataGroups(const Instruction& instruction) {
  return instruction.k / GroupSize(SparsityOf(instruction));
}

// The field that tells what `group` (0 .. MetadataGroups - 1) of `row` (0 .. m - 1) keeps. Lanes of
// a quad that the selector leaves out hold nothing.
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
  bool is_held = false;  // Whether the instruction reads it at all.
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
