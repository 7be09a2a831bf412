// SPDX-License-Identifier: Apache-2.0
//
// The rows of the CPU: from a row's template arguments to a Kernel, and the one table. launch.cc
// launches library rows, block_launch.cc rows with block factors.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "absl/types/span.h"
#include "kernels/cpu/engine.h"
#include "kernels/kernel.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

// A row as data: an engine and the types of its operands.
struct CpuRow {
  const Engine* engine;
  ElementType a;
  ElementType b;
  ElementType a_compute;  // The type that the engine gets.
  ElementType b_compute;
  ElementType accumulation;  // s32 for integers, even where the engine adds in f64.
};

extern const KernelFamily kCpuFamily;

using RowText = StaticText<160>;

// The type to which an engine's operands of `type` are converted.
constexpr ElementType ComputeType(const Engine& engine, ElementType type) {
  return engine.takes_unsigned && type == ElementType::kU8 ? type : engine.operand;
}

constexpr CpuRow DeriveRow(const Engine& engine, ElementType a, ElementType b) {
  return {.engine = &engine,
          .a = a,
          .b = b,
          .a_compute = ComputeType(engine, a),
          .b_compute = ComputeType(engine, b),
          .accumulation = IsInteger(a) ? ElementType::kS32 : engine.accumulator};
}

constexpr bool IsWidened(const CpuRow& row) {
  return row.a != row.a_compute || row.b != row.b_compute;
}

// "onednn.f32.e4m3.e5m2.via_bf16".
constexpr RowText DeriveName(const CpuRow& row) {
  const std::string_view via = IsWidened(row) ? ".via_" : "";
  const std::string_view compute = IsWidened(row) ? NameOf(row.engine->operand) : "";
  return RowText(row.engine->library, ".", NameOf(row.accumulation), ".", NameOf(row.a), ".",
                 NameOf(row.b), via, compute);
}

constexpr RowText DeriveDescription(const CpuRow& row) {
  const std::string_view call = row.engine->call;
  const std::string_view type = NameOf(row.engine->operand);
  if (row.a == ElementType::kTf32) {
    return RowText(call, " on operands without their low 13 bits");
  }
  if (!IsWidened(row) && row.b == ElementType::kU8 && row.engine->biases_unsigned_y) {
    return RowText(call, " on the operands in place, u8 on the right less 128");
  }
  if (!IsWidened(row)) return RowText(call, " on the operands in place");
  if (row.a == ElementType::kB1) {
    return RowText(call, " on bits as 0 and 1 in ", type, " (xor: 1 and -1), which is exact");
  }
  if (IsInteger(row.a)) {
    return RowText(call, " on operands widened to ", type, ", which is exact, modulo 2^32");
  }
  return RowText(call, " on operands widened exactly to ", type);
}

// Whether subnormals may count as zero. Types of at most 8 bits have none in bf16 or f32: their
// smallest magnitude is 2^-16 (e5m2), and every sum of their products is a multiple of 2^-32.
constexpr bool FlushesSubnormals(const CpuRow& row) {
  return row.engine->flushes_subnormals && BitsOf(row.a) > 8;
}

template <const Engine& kEngine, ElementType kA, ElementType kB>
struct RowFacts {
  static constexpr CpuRow kRow = DeriveRow(kEngine, kA, kB);
  static constexpr RowText kName = DeriveName(kRow);
  static constexpr RowText kDescription = DeriveDescription(kRow);
};

// Makes one row.
template <const Engine& kEngine, ElementType kA, ElementType kB = kA>
constexpr std::array<Kernel, 1> Row() {
  using Facts = RowFacts<kEngine, kA, kB>;
  constexpr CpuRow kRow = Facts::kRow;
  constexpr bool kExact = kRow.accumulation == ElementType::kS32;
  return {Kernel{
      .name = Facts::kName.view(),
      .device_kind = DeviceKind::kCpu,
      .provider = kEngine.provider,
      .engine = kEngine.name,
      .how = Facts::kDescription.view(),
      .a = kA,
      .b = kB,
      .recipe = {.a_compute = kRow.a_compute,
                 .b_compute = kRow.b_compute,
                 .accumulation = kRow.accumulation,
                 .exact = kExact,
                 .flushes_subnormals = FlushesSubnormals(kRow)},
      .deterministic = true,  // The libraries divide work by shape and thread count only.
      .batch_invariant =
          kExact,  // Libraries choose blocks of k by shape, so bits of floats depend on m.
      .family = &kCpuFamily,
      .row = &Facts::kRow,
  }};
}

template <size_t... kSizes>
constexpr auto JoinRows(const std::array<Kernel, kSizes>&... parts) {
  std::array<Kernel, (kSizes + ...)> all = {};
  size_t next = 0;
  const auto append = [&](const auto& part) {
    for (const Kernel& kernel : part) all[next++] = kernel;
  };
  (append(parts), ...);
  return all;
}

template <const Engine& kEngine, ElementType kA, ElementType... kBs>
constexpr auto RowsOfA() {
  return JoinRows(Row<kEngine, kA, kBs>()...);
}

// Makes a row for every pair of the types.
template <const Engine& kEngine, ElementType... kTypes>
constexpr auto Pairs() {
  return JoinRows(RowsOfA<kEngine, kTypes, kTypes...>()...);
}

// The rows that multiply operands with factors of blocks: gemmd's own loops, because no library
// specifies its order of summation.
extern const KernelFamily kBlockFamily;

constexpr RowText DeriveBlockName(ElementType a, ElementType b) {
  return RowText("gemmd.f32.", NameOf(a), ".", NameOf(b), ".blocks");
}

template <ElementType kA, ElementType kB>
struct BlockRowFacts {
  static constexpr RowText kName = DeriveBlockName(kA, kB);
};

template <ElementType kA, ElementType kB>
constexpr std::array<Kernel, 1> BlockRow() {
  return {Kernel{
      .name = BlockRowFacts<kA, kB>::kName.view(),
      .device_kind = DeviceKind::kCpu,
      .provider = "gemmd",
      .engine = "gemmd.blocks",
      .how =
          "sums of each block of k in f32, times the factors of the blocks, added in ascending k",
      .a = kA,
      .b = kB,
      .recipe = {.a_compute = ElementType::kF32,
                 .b_compute = ElementType::kF32,
                 .accumulation = ElementType::kF32,
                 .exact = false,
                 .flushes_subnormals = false,
                 .block_scaling = BlockScaling::kParts},
      .deterministic = true,
      .batch_invariant = true,
      .family = &kBlockFamily,
  }};
}

template <ElementType kA, ElementType... kBs>
constexpr auto BlockRowsOfA() {
  return JoinRows(BlockRow<kA, kBs>()...);
}

// Makes a row for every pair of the types.
template <ElementType... kTypes>
constexpr auto BlockPairs() {
  return JoinRows(BlockRowsOfA<kTypes, kTypes...>()...);
}

// Everything else about a row follows from its line here. Among equals the preferred one comes
// first.
inline constexpr auto kCpuRows = [] {
  using enum ElementType;
  return JoinRows(
      // Operands in place.
      Row<kOneDnnF32, kF32>(), Row<kOpenBlasF32, kF32>(), Row<kOpenBlasF64, kF64>(),
      Row<kOneDnnBf16, kBf16>(), Pairs<kOneDnnS8, kS8, kU8>(),
      // Floats, widened.
      Row<kOpenBlasF64, kF32>(), Row<kOneDnnF32, kTf32>(), Row<kOneDnnF32, kF16>(),
      Row<kOneDnnF32, kBf16>(), Pairs<kOneDnnBf16, kE4m3, kE5m2, kE3m2, kE2m3, kE2m1>(),
      Pairs<kOneDnnF32, kE4m3, kE5m2, kE3m2, kE2m3, kE2m1>(),
      // Integers and bits, widened; f64 serves processors without VNNI.
      Pairs<kOneDnnS8, kS4, kU4>(), Row<kOneDnnS8, kB1>(), Pairs<kOpenBlasF64, kS8, kU8>(),
      Pairs<kOpenBlasF64, kS4, kU4>(), Row<kOpenBlasF64, kB1>(),
      // Factors of blocks.
      BlockPairs<kE4m3, kE5m2, kE3m2, kE2m3, kE2m1>());
}();

absl::Span<const Kernel> CpuKernels();

}  // namespace gemmd
