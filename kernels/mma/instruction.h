// SPDX-License-Identifier: Apache-2.0
//
// A matrix instruction of PTX: one variant of mma, mma.sp, wmma, wgmma or wgmma.sp. Plain constant
// data that host, device code and tests share; the table of all of them is instructions.h.
//
// Source: PTX ISA 9.0, sections 9.7.14 (warp level) and 9.7.15 (warpgroup level).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/mma/element_type.h"

namespace gemmd {

// Compile-time text, for derived names.
template <size_t kCapacity>
class StaticText {
 public:
  constexpr StaticText() = default;
  template <typename... Parts>
  explicit constexpr StaticText(std::string_view first, Parts... parts) {
    Append(first);
    (Append(parts), ...);
  }

  constexpr void Append(std::string_view part) {
    for (char c : part) text_[size_++] = c;  // The compiler refuses text that does not fit.
  }
  constexpr void Append(int number) {
    if (number >= 10) Append(number / 10);
    text_[size_++] = static_cast<char>('0' + number % 10);
  }

  constexpr std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, kCapacity> text_ = {};
  size_t size_ = 0;
};

}  // namespace gemmd

namespace gemmd::mma {

enum class Family : uint8_t { kMma, kMmaSparse, kWmma, kWgmma, kWgmmaSparse };

// The order of a matrix if the name contains it: in memory (wmma) or across lanes (m8n8k4).
enum class Layout : uint8_t { kRow, kColumn };

enum class Rounding : uint8_t { kNearestEven, kTowardZero, kDown, kUp };
enum class BitCount : uint8_t { kNone, kAnd, kXor };

// The qualifier .kind of mma with fp8, fp6 and fp4 operands.
enum class Kind : uint8_t { kNone, kF8f6f4, kMxf8f6f4, kMxf4, kMxf4nvf4 };

// Factors along k: one for each row of A, or column of B, and block of k.
enum class ScaleType : uint8_t { kNone, kUe8m0, kUe4m3 };

// How many elements of each group along k are kept in A.
enum class Sparsity : uint8_t {
  kNone,
  kTwoOfFour,
  kOneOfTwo,     // tf32.
  kFourOfEight,  // 4-bit types: two of four adjacent pairs.
};

struct Instruction {
  Family family = Family::kMma;
  int16_t m = 0;
  int16_t n = 0;
  int16_t k = 0;  // The product's k; a sparse A holds half of it.
  ElementType a = ElementType::kF16;
  ElementType b = ElementType::kF16;
  ElementType c = ElementType::kF32;
  ElementType d = ElementType::kF32;
  Layout a_layout = Layout::kRow;
  Layout b_layout = Layout::kColumn;
  Rounding rounding = Rounding::kNearestEven;  // f64 only.
  bool saturates = false;                      // .satfinite
  BitCount bit_count = BitCount::kNone;
  Kind kind = Kind::kNone;
  ScaleType scale = ScaleType::kNone;
  int8_t scales = 0;        // Factors per row of A and column of B: .scale_vec::1X, 2X, 4X.
  int16_t min_target = 70;  // The least compute capability that PTX allows.

  constexpr bool is_sparse() const {
    return family == Family::kMmaSparse || family == Family::kWgmmaSparse;
  }
  constexpr bool is_warpgroup() const {
    return family == Family::kWgmma || family == Family::kWgmmaSparse;
  }
  // Threads that hold the operands.
  constexpr int lanes() const { return is_warpgroup() ? 128 : 32; }
  // Columns of A as held in registers.
  constexpr int a_columns() const { return is_sparse() ? k / 2 : k; }
  // Independent products of one instruction: m8n8k4 with f16 multiplies four pairs of matrices.
  constexpr int products() const {
    return family == Family::kMma && k == 4 && a == ElementType::kF16 ? 4 : 1;
  }
  // Elements along k that share a factor.
  constexpr int scale_block() const { return scales == 0 ? 0 : k / scales; }

  constexpr bool operator==(const Instruction&) const = default;
};

constexpr Sparsity SparsityOf(const Instruction& instruction) {
  if (!instruction.is_sparse()) return Sparsity::kNone;
  if (BitsOf(instruction.a) == 32) return Sparsity::kOneOfTwo;
  const bool is_packed_in_four =
      BitsOf(instruction.a) == 4 &&
      (instruction.kind == Kind::kNone || instruction.kind == Kind::kMxf4 ||
       instruction.kind == Kind::kMxf4nvf4);
  return is_packed_in_four ? Sparsity::kFourOfEight : Sparsity::kTwoOfFour;
}

// Elements along k of one group of a sparse A; one metadata nibble describes it.
constexpr int GroupSize(Sparsity sparsity) {
  switch (sparsity) {
    case Sparsity::kNone: return 1;
    case Sparsity::kTwoOfFour: return 4;
    case Sparsity::kOneOfTwo: return 2;
    case Sparsity::kFourOfEight: return 8;
  }
  return 1;
}

// Sparsity selectors that PTX allows: which lanes of a quad hold the metadata.
constexpr int SelectorCount(const Instruction& instruction) {
  if (!instruction.is_sparse()) return 0;
  const int groups = instruction.k / GroupSize(SparsityOf(instruction));
  if (groups == 4) return 4;
  return groups == 8 ? 2 : 1;
}

constexpr std::string_view NameOf(Family family) {
  switch (family) {
    case Family::kMma: return "mma";
    case Family::kMmaSparse: return "mma.sp";
    case Family::kWmma: return "wmma";
    case Family::kWgmma: return "wgmma";
    case Family::kWgmmaSparse: return "wgmma.sp";
  }
  return "";
}

constexpr std::string_view NameOf(Layout layout) { return layout == Layout::kRow ? "row" : "col"; }

// The qualifier with its dot; empty for the default.
constexpr std::string_view SuffixOf(Rounding rounding) {
  switch (rounding) {
    case Rounding::kNearestEven: return "";
    case Rounding::kTowardZero: return ".rz";
    case Rounding::kDown: return ".rm";
    case Rounding::kUp: return ".rp";
  }
  return "";
}

constexpr std::string_view SuffixOf(BitCount bit_count) {
  switch (bit_count) {
    case BitCount::kNone: return "";
    case BitCount::kAnd: return ".and.popc";
    case BitCount::kXor: return ".xor.popc";
  }
  return "";
}

constexpr std::string_view SuffixOf(Kind kind) {
  switch (kind) {
    case Kind::kNone: return "";
    case Kind::kF8f6f4: return ".kind::f8f6f4";
    case Kind::kMxf8f6f4: return ".kind::mxf8f6f4";
    case Kind::kMxf4: return ".kind::mxf4";
    case Kind::kMxf4nvf4: return ".kind::mxf4nvf4";
  }
  return "";
}

constexpr std::string_view NameOf(ScaleType scale) {
  switch (scale) {
    case ScaleType::kNone: return "";
    case ScaleType::kUe8m0: return "ue8m0";
    case ScaleType::kUe4m3: return "ue4m3";
  }
  return "";
}

// The code of a factor that is one.
constexpr uint8_t OneOf(ScaleType scale) {
  switch (scale) {
    case ScaleType::kNone: return 0;
    case ScaleType::kUe8m0: return 0x7f;
    case ScaleType::kUe4m3: return 0x38;
  }
  return 0;
}

constexpr std::string_view NameOf(Sparsity sparsity) {
  switch (sparsity) {
    case Sparsity::kNone: return "";
    case Sparsity::kTwoOfFour: return "2:4";
    case Sparsity::kOneOfTwo: return "1:2";
    case Sparsity::kFourOfEight: return "4:8";
  }
  return "";
}

using InstructionName = StaticText<96>;

// Whether the layouts are part of the name; elsewhere they are row and col.
constexpr bool NamesLayouts(const Instruction& instruction) {
  return instruction.family == Family::kWmma || instruction.products() == 4;
}

// "mma.m16n8k16.f32.bf16.bf16.f32", "wmma.m8n32k16.row.col.f32.f16.f16.f32",
// "wgmma.m64n256k16.f32.f16.f16": the qualifiers of PTX without .sync and .aligned, shape first.
constexpr InstructionName NameOf(const Instruction& instruction) {
  InstructionName name(NameOf(instruction.family), ".m", int{instruction.m}, "n",
                       int{instruction.n}, "k", int{instruction.k});
  if (NamesLayouts(instruction)) {
    name.Append(".");
    name.Append(NameOf(instruction.a_layout));
    name.Append(".");
    name.Append(NameOf(instruction.b_layout));
  }
  name.Append(SuffixOf(instruction.kind));
  if (instruction.scales > 0) {
    name.Append(".block_scale.scale_vec::");
    name.Append(int{instruction.scales});
    name.Append("X");
  }
  name.Append(SuffixOf(instruction.rounding));
  if (instruction.saturates) name.Append(".satfinite");
  if (instruction.is_warpgroup()) name.Append(SuffixOf(instruction.bit_count));
  if (instruction.d == ElementType::kF64 && instruction.family == Family::kMma) {
    name.Append(".f64");  // All four types.
    return name;
  }
  for (const ElementType type : {instruction.d, instruction.a, instruction.b}) {
    name.Append(".");
    name.Append(NameOf(type));
  }
  if (!instruction.is_warpgroup()) {
    name.Append(".");
    name.Append(NameOf(instruction.c));
    name.Append(SuffixOf(instruction.bit_count));
  }
  if (instruction.scales > 0) {
    name.Append(".");
    name.Append(NameOf(instruction.scale));
  }
  return name;
}

}  // namespace gemmd::mma
