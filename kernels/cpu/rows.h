// SPDX-License-Identifier: Apache-2.0
//
// The rows of the CPU: the one table. Everything else about a row follows from its line here
// (row.h). Among equals the preferred one comes first.
#pragma once

#include "absl/types/span.h"
#include "kernels/cpu/block_launch.h"
#include "kernels/cpu/row.h"

namespace gemmd {

inline constexpr auto kCpuRows = [] {
  using enum ElementType;
  return JoinRows(
      // Operands as they are.
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
