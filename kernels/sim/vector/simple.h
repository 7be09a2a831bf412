// SPDX-License-Identifier: Apache-2.0
//
// Integers, bits and multiply-adds in vectors.
#pragma once

#include <cstdint>

#include "kernels/sim/scalar.h"
#include "kernels/sim/vector/runs.h"

namespace gemmd::sim {

// The sum plus exact products, clamped.
template <typename V>
typename V::Int AddClamped(typename V::Int sum, typename V::Int products) {
  const auto both = V::Add(sum, products);
  const auto overflow = V::SignMask(V::And(V::Xor(sum, both), V::Xor(products, both)));
  // The largest or the lowest value, by the sign of the addends.
  const auto bound = V::Xor(V::SignMask(sum), V::Set(INT32_MAX));
  return V::Or(V::And(overflow, bound), V::AndNot(overflow, both));
}

template <typename V>
void RunIntegers(const IntegerRun& run) {
  using Int = typename V::Int;
  constexpr int kVectors = kPanel / V::kLanes;
  Int sums[kIntegerRows][kVectors];
  for (int i = 0; i < kIntegerRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = V::Load(run.sums + i * run.sums_stride + v * V::kLanes);
    }
  }
  // The products of one instruction fit 32 bits; those of many may wrap.
  const int64_t step = run.saturates ? run.pairs_per_instruction
                                     : int64_t{run.pairs_per_instruction} * run.instructions;
  const int64_t pairs = int64_t{run.pairs_per_instruction} * run.instructions;
  for (int64_t first = 0; first < pairs; first += step) {
    Int products[kIntegerRows][kVectors];
    for (auto& row : products) {
      for (Int& x : row) x = V::Zero();
    }
    for (int64_t p = first; p < first + step; ++p) {
      Int b[kVectors];
      for (int v = 0; v < kVectors; ++v) b[v] = V::Load(run.b + p * kPanel + v * V::kLanes);
      for (int i = 0; i < kIntegerRows; ++i) {
        const Int a = V::Set(run.a[i * run.a_stride + p]);
        for (int v = 0; v < kVectors; ++v) {
          products[i][v] = V::Add(products[i][v], V::MultiplyPairs(a, b[v]));
        }
      }
    }
    for (int i = 0; i < kIntegerRows; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] = run.saturates ? AddClamped<V>(sums[i][v], products[i][v])
                                   : V::Add(sums[i][v], products[i][v]);
      }
    }
  }
  for (int i = 0; i < kIntegerRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      V::Store(run.sums + i * run.sums_stride + v * V::kLanes, sums[i][v]);
    }
  }
}

// Counts 64 bits at a time, which the processor does in one instruction.
template <typename V>
void RunBits(const BitRun& run) {
  for (int column = 0; column < kPanel; ++column) {
    const uint64_t* b = run.b + int64_t{column} * run.words;
    uint32_t count = 0;
    for (int i = 0; i < run.words; ++i) {
      const uint64_t both = run.is_xor ? run.a[i] ^ b[i] : run.a[i] & b[i];
      count += static_cast<uint32_t>(__builtin_popcountll(both));
    }
    run.sums[column] += count;
  }
}

// Not inlined where the rounding mode changes, so that no operation moves across the change.
template <typename V>
[[gnu::noinline]] bool ChainF64(const F64Run& run) {
  using Double = typename V::Double;
  constexpr int kVectors = kPanel / V::kDoubles;
  Double sums[kF64Rows][kVectors];
  for (int i = 0; i < kF64Rows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = V::LoadDouble(run.sums + i * run.sums_stride + v * V::kDoubles);
    }
  }
  for (int64_t k = 0; k < run.depth; ++k) {
    Double b[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      b[v] = V::LoadDouble(run.b + k * kPanel + v * V::kDoubles);
    }
    for (int i = 0; i < kF64Rows; ++i) {
      const Double a = V::SetDouble(run.a[i * run.a_stride + k]);
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] = V::MultiplyAddDouble(a, b[v], sums[i][v]);
      }
    }
  }
  bool has_nan = false;
  for (const auto& row : sums) {
    for (const Double& x : row) has_nan |= V::HasNan(x);
  }
  if (has_nan) return false;
  for (int i = 0; i < kF64Rows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      V::StoreDouble(run.sums + i * run.sums_stride + v * V::kDoubles, sums[i][v]);
    }
  }
  return true;
}

// Runs the plain code, because NaNs have special rules; a NaN result shows that a NaN occurred.
void PlainF64(const F64Run& run);

template <typename V>
void RunF64(const F64Run& run) {
  const ScopedRounding rounding(run.rounding);
  if (!ChainF64<V>(run)) PlainF64(run);
}

template <typename V>
void RunMultiplyAdds(const MultiplyAddRun& run) {
  using Int = typename V::Int;
  using Float = typename V::Float;
  constexpr int kVectors = kPanel / V::kLanes;
  const bool is_half = run.d == ElementType::kF16;
  for (int v = 0; v < kVectors; ++v) {
    Int d = V::Load(run.sums + v * V::kLanes);
    for (int64_t step = 0; step < run.instructions; ++step) {
      const float* a = run.a + 4 * step;
      Float b[4];
      for (int k = 0; k < 4; ++k) {
        b[k] = V::LoadFloat(run.b + (4 * step + k) * kPanel + v * V::kLanes);
      }
      if (is_half) {
        const Float low =
            V::MultiplyAdd(V::SetFloat(a[1]), b[1], V::MultiplyFloat(V::SetFloat(a[0]), b[0]));
        const Float high =
            V::MultiplyAdd(V::SetFloat(a[3]), b[3], V::MultiplyFloat(V::SetFloat(a[2]), b[2]));
        const Float sum = V::AddFloat(V::AddFloat(V::FloatFromHalf(d), low), high);
        const Int nan = V::IsNan(sum);
        d = V::Or(V::And(nan, V::Set(kNanF16)), V::AndNot(nan, V::HalfFromFloat(sum)));
        continue;
      }
      if (run.c == ElementType::kF16) {
        d = V::Bits(V::FloatFromHalf(V::HalfFromFloat(V::FromBits(d))));
      }
      Float chain = V::SetFloat(0);
      for (int k = 0; k < 4; ++k) chain = V::MultiplyAdd(V::SetFloat(a[k]), b[k], chain);
      const Float sum = V::AddFloat(V::FromBits(d), chain);
      const Int nan = V::IsNan(sum);
      d = V::Or(V::And(nan, V::Set(kNanF32)), V::AndNot(nan, V::Bits(sum)));
    }
    V::Store(run.sums + v * V::kLanes, d);
  }
}

}  // namespace gemmd::sim
