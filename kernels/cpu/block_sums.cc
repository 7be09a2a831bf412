// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/block_sums.h"

#include <algorithm>
#include <cstring>

namespace gemmd {
namespace {

// Steps between two checks of the flag: well below a millisecond.
constexpr int64_t kSteps = 1 << 16;

using Floats = float __attribute__((vector_size(kPanelColumns * sizeof(float))));

// The factors of one part for one row of the strip.
[[gnu::always_inline]] inline void AddPart(const Strip& strip, int64_t row, int64_t first,
                                           const Floats& sum) {
  const double a =
      strip.a_blocks == nullptr ? 1.0 : strip.a_factors[row][first / strip.a_blocks->depth];
  const float* const b = strip.b_blocks == nullptr
                             ? nullptr
                             : strip.b_factors + first / strip.b_blocks->depth * kPanelColumns;
  float* const totals = strip.totals[row];
  for (int64_t j = 0; j < kPanelColumns; ++j) {
    const double factor = a * (b == nullptr ? 1.0 : double{b[j]});
    totals[j] += static_cast<float>(double{sum[j]} * factor);
  }
}

[[gnu::always_inline]] inline void SumParts(const Strip& strip) {
  std::memset(strip.totals, 0, kStripRows * sizeof(strip.totals[0]));
  for (int64_t first = 0; first < strip.k;) {
    const int64_t end = EndOfPart(strip.a_blocks, strip.b_blocks, first, strip.k);
    Floats sums[kStripRows] = {};
    for (int64_t p = first; p < end;) {
      if (IsSet(strip.abort)) return;
      for (const int64_t look = std::min(end, p + kSteps); p < look; ++p) {
        Floats b;
        std::memcpy(&b, strip.b + p * kPanelColumns, sizeof(b));
        for (int64_t i = 0; i < kStripRows; ++i) sums[i] += strip.a[i][p] * b;
      }
    }
    for (int64_t i = 0; i < kStripRows; ++i) AddPart(strip, i, first, sums[i]);
    first = end;
  }
}

void SumBaseline(const Strip& strip) { SumParts(strip); }

[[gnu::target("avx2,fma")]] void SumAvx2(const Strip& strip) { SumParts(strip); }
[[gnu::target("avx512f")]] void SumAvx512(const Strip& strip) { SumParts(strip); }

}  // namespace

bool CanRun(BlockPath path) {
  switch (path) {
    case BlockPath::kBaseline: return true;
    case BlockPath::kAvx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    case BlockPath::kAvx512: return __builtin_cpu_supports("avx512f") != 0;
  }
  return false;
}

BlockPath BestBlockPath() {
  if (CanRun(BlockPath::kAvx512)) return BlockPath::kAvx512;
  return CanRun(BlockPath::kAvx2) ? BlockPath::kAvx2 : BlockPath::kBaseline;
}

void SumStrip(BlockPath path, const Strip& strip) {
  switch (path) {
    case BlockPath::kBaseline: return SumBaseline(strip);
    case BlockPath::kAvx2: return SumAvx2(strip);
    case BlockPath::kAvx512: return SumAvx512(strip);
  }
}

}  // namespace gemmd
