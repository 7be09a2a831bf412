// SPDX-License-Identifier: Apache-2.0
//
// The table of every instruction. A new instruction is a line of its family's function here; its
// name, fragments, arithmetic and kernel follow from the row.
//
// Source: PTX ISA 9.0, sections 9.7.14 and 9.7.15.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/mma/instruction.h"

namespace gemmd::mma {

namespace table {

inline constexpr size_t kCapacity = 2048;

struct Rows {
  std::array<Instruction, kCapacity> rows = {};
  size_t size = 0;

  constexpr void Add(const Instruction& row) { rows[size++] = row; }
};

struct Shape {
  int16_t m;
  int16_t n;
  int16_t k;
};

constexpr Instruction Make(Family family, Shape shape, ElementType d, ElementType a, ElementType b,
                           ElementType c, int min_target) {
  Instruction row;
  row.family = family;
  row.m = shape.m;
  row.n = shape.n;
  row.k = shape.k;
  row.d = d;
  row.a = a;
  row.b = b;
  row.c = c;
  row.min_target = static_cast<int16_t>(min_target);
  return row;
}

inline constexpr std::array kLayouts = {Layout::kRow, Layout::kColumn};
inline constexpr std::array kRoundings = {Rounding::kNearestEven, Rounding::kTowardZero,
                                          Rounding::kDown, Rounding::kUp};
inline constexpr std::array kFp8 = {ElementType::kE4m3, ElementType::kE5m2};
inline constexpr std::array kFp8To4 = {ElementType::kE4m3, ElementType::kE5m2, ElementType::kE3m2,
                                       ElementType::kE2m3, ElementType::kE2m1};
inline constexpr std::array kInt8 = {ElementType::kS8, ElementType::kU8};
inline constexpr std::array kInt4 = {ElementType::kS4, ElementType::kU4};
inline constexpr std::array kSums = {ElementType::kF32, ElementType::kF16};

// Adds every pair of types, wrapping first.
template <size_t kTypes>
constexpr void AddIntegers(Rows& rows, Family family, Shape shape,
                           const std::array<ElementType, kTypes>& types, int min_target) {
  for (const bool saturates : {false, true}) {
    for (const ElementType a : types) {
      for (const ElementType b : types) {
        Instruction row =
            Make(family, shape, ElementType::kS32, a, b, ElementType::kS32, min_target);
        row.saturates = saturates;
        rows.Add(row);
      }
    }
  }
}

template <size_t kTypes>
constexpr void AddFloats(Rows& rows, Family family, Shape shape, ElementType sum,
                         const std::array<ElementType, kTypes>& types, int min_target) {
  for (const ElementType a : types) {
    for (const ElementType b : types) rows.Add(Make(family, shape, sum, a, b, sum, min_target));
  }
}

constexpr void AddBits(Rows& rows, Family family, Shape shape, BitCount count, int min_target) {
  Instruction row = Make(family, shape, ElementType::kS32, ElementType::kB1, ElementType::kB1,
                         ElementType::kS32, min_target);
  row.bit_count = count;
  rows.Add(row);
}

constexpr void AddF16AndBf16(Rows& rows, Family family, Shape shape, int f16_target) {
  for (const ElementType sum : kSums) {
    rows.Add(Make(family, shape, sum, ElementType::kF16, ElementType::kF16, sum, f16_target));
  }
  rows.Add(Make(family, shape, ElementType::kF32, ElementType::kBf16, ElementType::kBf16,
                ElementType::kF32, 80));
}

constexpr void AddTf32(Rows& rows, Family family, Shape shape) {
  rows.Add(Make(family, shape, ElementType::kF32, ElementType::kTf32, ElementType::kTf32,
                ElementType::kF32, 80));
}

constexpr void AddScaled(Rows& rows, Family family, Shape shape, Kind kind, ElementType a,
                         ElementType b, ScaleType scale, int scales) {
  Instruction row = Make(family, shape, ElementType::kF32, a, b, ElementType::kF32, 120);
  row.kind = kind;
  row.scale = scale;
  row.scales = static_cast<int8_t>(scales);
  rows.Add(row);
}

constexpr void AddMmaF64(Rows& rows, Shape shape, int min_target) {
  for (const Rounding rounding : kRoundings) {
    Instruction row = Make(Family::kMma, shape, ElementType::kF64, ElementType::kF64,
                           ElementType::kF64, ElementType::kF64, min_target);
    row.rounding = rounding;
    rows.Add(row);
  }
}

// There is no f16 D with f32 C.
constexpr void AddMmaM8n8k4F16(Rows& rows) {
  struct Types {
    ElementType d;
    ElementType c;
  };
  constexpr std::array kTypes = {Types{ElementType::kF32, ElementType::kF32},
                                 Types{ElementType::kF16, ElementType::kF16},
                                 Types{ElementType::kF32, ElementType::kF16}};
  for (const Layout a : kLayouts) {
    for (const Layout b : kLayouts) {
      for (const Types& types : kTypes) {
        Instruction row = Make(Family::kMma, {8, 8, 4}, types.d, ElementType::kF16,
                               ElementType::kF16, types.c, 70);
        row.a_layout = a;
        row.b_layout = b;
        rows.Add(row);
      }
    }
  }
}

// Adds the kinds with fp8, fp6 and fp4 operands: m16n8k32 and m16n8k64, sparse twice as deep.
constexpr void AddNarrowFloats(Rows& rows, Family family) {
  const bool is_sparse = family == Family::kMmaSparse;
  const Shape bytes = is_sparse ? Shape{16, 8, 64} : Shape{16, 8, 32};
  const Shape nibbles = is_sparse ? Shape{16, 8, 128} : Shape{16, 8, 64};
  for (const ElementType sum : kSums) {
    for (const ElementType a : kFp8To4) {
      for (const ElementType b : kFp8To4) {
        Instruction row = Make(family, bytes, sum, a, b, sum, 120);
        // ptxas takes fp8 pairs, emulated, for sm_100a and its family.
        if (BitsOf(a) == 8 && BitsOf(b) == 8 && !(is_sparse && sum == ElementType::kF16)) {
          row.min_target = 100;
        }
        row.kind = Kind::kF8f6f4;
        rows.Add(row);
      }
    }
  }
  for (const ElementType a : kFp8To4) {
    for (const ElementType b : kFp8To4) {
      AddScaled(rows, family, bytes, Kind::kMxf8f6f4, a, b, ScaleType::kUe8m0, 1);
    }
  }
  constexpr ElementType kFp4 = ElementType::kE2m1;
  AddScaled(rows, family, nibbles, Kind::kMxf4, kFp4, kFp4, ScaleType::kUe8m0, 2);
  AddScaled(rows, family, nibbles, Kind::kMxf4nvf4, kFp4, kFp4, ScaleType::kUe8m0, 2);
  AddScaled(rows, family, nibbles, Kind::kMxf4nvf4, kFp4, kFp4, ScaleType::kUe4m3, 4);
}

// Deep shapes come first: among equals the first one is chosen.
constexpr void AddMma(Rows& rows) {
  constexpr Family kFamily = Family::kMma;
  AddF16AndBf16(rows, kFamily, {16, 8, 16}, 80);
  AddF16AndBf16(rows, kFamily, {16, 8, 8}, 75);
  AddTf32(rows, kFamily, {16, 8, 8});
  AddTf32(rows, kFamily, {16, 8, 4});
  AddMmaF64(rows, {16, 8, 16}, 90);
  AddMmaF64(rows, {16, 8, 8}, 90);
  AddMmaF64(rows, {16, 8, 4}, 90);
  AddMmaF64(rows, {8, 8, 4}, 80);
  AddIntegers(rows, kFamily, {16, 8, 32}, kInt8, 80);
  AddIntegers(rows, kFamily, {16, 8, 16}, kInt8, 80);
  AddIntegers(rows, kFamily, {8, 8, 16}, kInt8, 75);
  AddIntegers(rows, kFamily, {16, 8, 64}, kInt4, 80);
  AddIntegers(rows, kFamily, {16, 8, 32}, kInt4, 80);
  AddIntegers(rows, kFamily, {8, 8, 32}, kInt4, 75);
  for (const BitCount count : {BitCount::kAnd, BitCount::kXor}) {
    AddBits(rows, kFamily, {16, 8, 256}, count, 80);
    AddBits(rows, kFamily, {16, 8, 128}, count, 80);
    AddBits(rows, kFamily, {8, 8, 128}, count, count == BitCount::kAnd ? 80 : 75);
  }
  for (const ElementType sum : kSums) {
    AddFloats(rows, kFamily, {16, 8, 32}, sum, kFp8, 89);
    AddFloats(rows, kFamily, {16, 8, 16}, sum, kFp8, 89);
  }
  AddNarrowFloats(rows, kFamily);
  AddMmaM8n8k4F16(rows);
}

constexpr void AddMmaSparse(Rows& rows) {
  constexpr Family kFamily = Family::kMmaSparse;
  AddF16AndBf16(rows, kFamily, {16, 8, 32}, 80);
  AddF16AndBf16(rows, kFamily, {16, 8, 16}, 80);
  AddTf32(rows, kFamily, {16, 8, 16});
  AddTf32(rows, kFamily, {16, 8, 8});
  AddIntegers(rows, kFamily, {16, 8, 64}, kInt8, 80);
  AddIntegers(rows, kFamily, {16, 8, 32}, kInt8, 80);
  AddIntegers(rows, kFamily, {16, 8, 128}, kInt4, 80);
  AddIntegers(rows, kFamily, {16, 8, 64}, kInt4, 80);
  AddFloats(rows, kFamily, {16, 8, 64}, ElementType::kF32, kFp8, 89);
  AddFloats(rows, kFamily, {16, 8, 64}, ElementType::kF16, kFp8, 120);
  AddNarrowFloats(rows, kFamily);
}

constexpr void AddWmmaK16(Rows& rows, Instruction layouts, Shape shape) {
  const auto add = [&](ElementType d, ElementType operand, ElementType c, int min_target,
                       bool saturates) {
    Instruction row = Make(Family::kWmma, shape, d, operand, operand, c, min_target);
    row.a_layout = layouts.a_layout;
    row.b_layout = layouts.b_layout;
    row.saturates = saturates;
    rows.Add(row);
  };
  for (const ElementType d : kSums) {
    for (const ElementType c : kSums) add(d, ElementType::kF16, c, 70, false);
  }
  add(ElementType::kF32, ElementType::kBf16, ElementType::kF32, 80, false);
  for (const ElementType operand : kInt8) {
    for (const bool saturates : {false, true}) {
      add(ElementType::kS32, operand, ElementType::kS32, 72, saturates);
    }
  }
}

constexpr void AddWmma(Rows& rows) {
  for (const Layout a : kLayouts) {
    for (const Layout b : kLayouts) {
      Instruction layouts;
      layouts.a_layout = a;
      layouts.b_layout = b;
      for (const Shape shape : {Shape{16, 16, 16}, Shape{8, 32, 16}, Shape{32, 8, 16}}) {
        AddWmmaK16(rows, layouts, shape);
      }
      Instruction row = Make(Family::kWmma, {16, 16, 8}, ElementType::kF32, ElementType::kTf32,
                             ElementType::kTf32, ElementType::kF32, 80);
      row.a_layout = a;
      row.b_layout = b;
      rows.Add(row);
      for (const Rounding rounding : kRoundings) {
        row = Make(Family::kWmma, {8, 8, 4}, ElementType::kF64, ElementType::kF64,
                   ElementType::kF64, ElementType::kF64, 80);
        row.a_layout = a;
        row.b_layout = b;
        row.rounding = rounding;
        rows.Add(row);
      }
    }
  }
  for (const ElementType operand : kInt4) {
    for (const bool saturates : {false, true}) {
      Instruction row = Make(Family::kWmma, {8, 8, 32}, ElementType::kS32, operand, operand,
                             ElementType::kS32, 75);
      row.saturates = saturates;
      rows.Add(row);
    }
  }
  AddBits(rows, Family::kWmma, {8, 8, 128}, BitCount::kAnd, 80);
  AddBits(rows, Family::kWmma, {8, 8, 128}, BitCount::kXor, 75);
}

// The n of integer wgmma is a multiple of 8 up to 32, and of 16 above.
constexpr bool IsIntegerWidth(int n) { return n <= 32 || n % 16 == 0; }

constexpr void AddWgmma(Rows& rows, Family family) {
  const bool is_sparse = family == Family::kWgmmaSparse;
  const auto depth = [&](int k) { return static_cast<int16_t>(is_sparse ? 2 * k : k); };
  for (int width = 256; width >= 8; width -= 8) {
    const auto n = static_cast<int16_t>(width);
    const auto add = [&](int k, ElementType d, ElementType a, ElementType b, bool saturates) {
      Instruction row = Make(family, {64, n, depth(k)}, d, a, b, d, 90);
      row.saturates = saturates;
      rows.Add(row);
    };
    for (const ElementType sum : kSums) add(16, sum, ElementType::kF16, ElementType::kF16, false);
    add(16, ElementType::kF32, ElementType::kBf16, ElementType::kBf16, false);
    add(8, ElementType::kF32, ElementType::kTf32, ElementType::kTf32, false);
    for (const ElementType sum : kSums) {
      for (const ElementType a : kFp8) {
        for (const ElementType b : kFp8) add(32, sum, a, b, false);
      }
    }
    if (!IsIntegerWidth(width)) continue;
    for (const bool saturates : {false, true}) {
      for (const ElementType a : kInt8) {
        for (const ElementType b : kInt8) add(32, ElementType::kS32, a, b, saturates);
      }
    }
    if (!is_sparse) AddBits(rows, family, {64, n, 256}, BitCount::kAnd, 90);
  }
}

constexpr Rows MakeRows() {
  Rows rows;
  AddMma(rows);
  AddMmaSparse(rows);
  AddWmma(rows);
  AddWgmma(rows, Family::kWgmma);
  AddWgmma(rows, Family::kWgmmaSparse);
  return rows;
}

inline constexpr size_t kSize = MakeRows().size;

constexpr std::array<Instruction, kSize> Trim(const Rows& rows) {
  std::array<Instruction, kSize> trimmed = {};
  for (size_t i = 0; i < kSize; ++i) trimmed[i] = rows.rows[i];
  return trimmed;
}

}  // namespace table

// Every instruction, in the order of preference inside each family.
inline constexpr auto kInstructions = table::Trim(table::MakeRows());

// Null if there is none of that name.
constexpr const Instruction* FindInstruction(std::string_view name) {
  for (const Instruction& instruction : kInstructions) {
    if (NameOf(instruction).view() == name) return &instruction;
  }
  return nullptr;
}

}  // namespace gemmd::mma
