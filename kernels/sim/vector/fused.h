// SPDX-License-Identifier: Apache-2.0
//
// Fused sums in vectors. Specification: kernels/mma/arithmetic.h. Lanes that need more than 32-bit
// arithmetic are detected and computed by PlainBlock.
#pragma once

#include <cstdint>

#include "kernels/sim/scalar.h"
#include "kernels/sim/vector/runs.h"

namespace gemmd::sim {

// The decoded addend of a sum.
template <typename V>
struct Addend {
  typename V::Int significand;
  typename V::Int exponent;  // kZeroExponent or less if the addend is zero.
  typename V::Int sign;      // All ones if the addend is negative.
  typename V::Int special;   // Sign bit set if the addend is infinite or NaN.
};

// kIsHalf: sums are f16. kBlock: products of a block. kIsIndexed: FusedRun::a_rows is given.
// Processes all lanes of a panel (kVectors vectors) together. Everything is inlined: passing
// vectors through memory took twice the time.
template <typename V, bool kIsHalf, int kBlock, bool kIsIndexed>
class FusedCode {
 public:
  using Int = typename V::Int;
  using Float = typename V::Float;
  static constexpr int kVectors = kPanel / V::kLanes;

  explicit FusedCode(const FusedRun& run)
      : run_(run),
        fraction_bits_(run.arithmetic->fraction_bits),
        products_(run.products),
        depth_(run.depth),
        kept_(kIsHalf ? ~0 : ~((1 << (23 - run.arithmetic->stored_bits)) - 1)) {}

  void Run() {
    Int d[kVectors];
    for (int v = 0; v < kVectors; ++v) d[v] = V::Load(run_.sums + v * V::kLanes);
    for (int i = 0; i < run_.instructions; ++i) Execute(i, d);
    for (int v = 0; v < kVectors; ++v) V::Store(run_.sums + v * V::kLanes, d[v]);
  }

 private:
  [[gnu::always_inline]] void Execute(int index, Int (&d)[kVectors]) {
    const mma::Instruction& instruction = *run_.instruction;
    const bool mixes = !kIsHalf;
    const bool c_is_half = mixes && instruction.c == ElementType::kF16;
    const bool d_is_half = mixes && instruction.d == ElementType::kF16;
    Int sum[kVectors];
    Int c[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      c[v] = d[v];
      if (c_is_half) c[v] = V::HalfFromFloat(V::FromBits(c[v]));
      if (c_is_half || d_is_half) c[v] = V::Bits(V::FloatFromHalf(c[v]));
    }
    const bool adds_c_last = run_.arithmetic->algorithm == mma::Algorithm::kFusedHalvesThenC;
    for (int v = 0; v < kVectors; ++v) sum[v] = adds_c_last ? V::Zero() : c[v];
    for (int first = 0; first < products_; first += kBlock) {
      SumBlock(index * products_ + first, index * depth_, sum);
    }
    for (int v = 0; v < kVectors; ++v) {
      if (adds_c_last) sum[v] = AddC(c[v], sum[v]);
      d[v] = d_is_half ? V::HalfFromFloat(V::FromBits(sum[v])) : sum[v];
    }
  }

  // Adds C with one more rounding, to nearest even.
  static Int AddC(Int c, Int halves) {
    if constexpr (kIsHalf) {
      const Float sum = V::AddFloat(V::FloatFromHalf(c), V::FloatFromHalf(halves));
      return Select(V::IsNan(sum), V::Set(kNanF16), V::HalfFromFloat(sum));
    } else {
      const Float sum = V::AddFloat(V::FromBits(c), V::FromBits(halves));
      return Select(V::IsNan(sum), V::Set(kNanF32), V::Bits(sum));
    }
  }

  static Int Select(Int mask, Int yes, Int no) {
    return V::Or(V::And(mask, yes), V::AndNot(mask, no));
  }

  // The start of the row of B for product `i` of the block.
  int64_t RowOf(int i, int row_base, int first_of_instruction) const {
    const int row = kIsIndexed ? run_.a_rows[i] : row_base + i - first_of_instruction;
    return int64_t{row} * kPanel;
  }

  [[gnu::always_inline]] void SumBlock(int first, int row_base, Int (&sum)[kVectors]) {
    const int first_of_instruction = first - first % products_;
    Int aligning[kVectors];
    Addend<V> addend[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      addend[v] = TakeApart(sum[v]);
      aligning[v] = V::Max(addend[v].exponent, V::Set(run_.arithmetic->floor));
    }
#pragma GCC unroll 16
    for (int i = first; i < first + kBlock; ++i) {
      const int64_t row = RowOf(i, row_base, first_of_instruction);
      const Int exponent = V::Set(run_.a[i].exponent);
      for (int v = 0; v < kVectors; ++v) {
        const Int both = V::Add(exponent, V::Load(run_.exponents + row + v * V::kLanes));
        aligning[v] = V::Max(aligning[v], both);
      }
    }
    Int total[kVectors];
    Int trouble[kVectors];  // Sign bit: the lane needs the plain code.
    for (int v = 0; v < kVectors; ++v) {
      total[v] = AlignAddend(addend[v], aligning[v]);
      trouble[v] = V::Or(addend[v].special, V::Sub(V::Set(kLargestExponent), aligning[v]));
    }
    // 16 products of 27 bits and their signs fit 32 bits.
    constexpr int kSafe = 16;
    for (int part = 0; part < kBlock; part += kSafe) {
      AddProducts < kBlock<kSafe ? kBlock : kSafe>(first + part, row_base, first_of_instruction,
                                                   aligning, total, trouble);
    }
    const uint32_t plain = Finish(aligning, total, trouble, sum);
    if (plain != 0) [[unlikely]]
      Repair(first, row_base, plain, sum);
  }

  template <int kCount>
  [[gnu::always_inline]] void AddProducts(int first, int row_base, int first_of_instruction,
                                          const Int (&aligning)[kVectors], Int (&total)[kVectors],
                                          Int (&trouble)[kVectors]) {
    Int products[kVectors];
    for (int v = 0; v < kVectors; ++v) products[v] = V::Zero();
#pragma GCC unroll 16
    for (int i = first; i < first + kCount; ++i) {
      const int64_t row = RowOf(i, row_base, first_of_instruction);
      const Int significand = V::Set(run_.a[i].significand & 0xffff);
      const Int exponent = V::Set(run_.a[i].exponent);
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = row + v * V::kLanes;
        const Int product = V::MultiplyPairs(significand, V::Load(run_.significands + at));
        const Int both = V::Add(exponent, V::Load(run_.exponents + at));
        const Int cut = V::ShiftRightBy(V::Abs(product), V::Sub(aligning[v], both));
        products[v] = V::Add(products[v], V::WithSign(cut, product));
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      const Int both = V::Add(total[v], products[v]);
      const Int overflow = V::And(V::Xor(total[v], both), V::Xor(products[v], both));
      trouble[v] = V::Or(trouble[v], overflow);
      total[v] = both;
    }
  }

  [[gnu::always_inline]] static Addend<V> TakeApart(Int bits) {
    constexpr int kFraction = kIsHalf ? 10 : 23;
    constexpr int kBias = kIsHalf ? 15 : 127;
    constexpr int32_t kMagnitude = kIsHalf ? 0x7fff : 0x7fffffff;
    constexpr int32_t kLargestFinite = kIsHalf ? 0x7bff : 0x7f7fffff;
    Addend<V> addend;
    const Int magnitude = V::And(bits, V::Set(kMagnitude));
    const Int field = V::ShiftRight(magnitude, kFraction);
    const Int normal = V::IsGreater(field, V::Zero());
    const Int zero = V::IsEqual(magnitude, V::Zero());
    addend.significand = V::Or(V::And(magnitude, V::Set((1 << kFraction) - 1)),
                               V::And(normal, V::Set(1 << kFraction)));
    // A subnormal has the exponent of the smallest normal; the mask is -1 for normal numbers.
    addend.exponent = V::Add(V::Add(field, V::Set(1 - kBias)), normal);
    addend.exponent = V::Add(addend.exponent, V::And(zero, V::Set(kZeroExponent)));
    addend.sign = V::SignMask(kIsHalf ? V::ShiftLeft(bits, 16) : bits);
    addend.special = V::Sub(V::Set(kLargestFinite), magnitude);
    return addend;
  }

  [[gnu::always_inline]] Int AlignAddend(const Addend<V>& addend, Int aligning) const {
    constexpr int kFraction = kIsHalf ? 10 : 23;
    const int up = fraction_bits_ - kFraction;
    Int significand = addend.significand;
    Int counts = V::Sub(aligning, addend.exponent);
    if (up >= 0) {
      significand = V::ShiftLeft(significand, up);
    } else {
      counts = V::Add(counts, V::Set(-up));
    }
    const Int cut = V::ShiftRightBy(significand, counts);
    return V::Sub(V::Xor(cut, addend.sign), addend.sign);
  }

  // Rounds the totals into `sum`, except in lanes in trouble, and returns those lanes, one bit
  // each.
  [[gnu::always_inline]] uint32_t Finish(const Int (&aligning)[kVectors],
                                         const Int (&total)[kVectors], Int (&trouble)[kVectors],
                                         Int (&sum)[kVectors]) {
    uint32_t plain = 0;
    for (int v = 0; v < kVectors; ++v) {
      const Int sign = V::SignMask(total[v]);
      const Int magnitude = V::Sub(V::Xor(total[v], sign), sign);
      trouble[v] = V::Or(trouble[v], magnitude);  // -2^31 has no magnitude.
      // Ones at the bits that do not fit a 24-bit significand.
      Int lost = V::ShiftRight(magnitude, 24);
      lost = V::Or(lost, V::ShiftRight(lost, 1));
      lost = V::Or(lost, V::ShiftRight(lost, 2));
      lost = V::Or(lost, V::ShiftRight(lost, 4));
      Int bits = V::Bits(V::ToFloat(V::AndNot(lost, magnitude)));
      const Int scale = V::Sub(aligning[v], V::Set(fraction_bits_));
      const Int is_zero = V::IsEqual(magnitude, V::Zero());
      Int result;
      if constexpr (kIsHalf) {
        // Sticky bit: the lowest bit records lost bits, so that the second rounding has no effect
        // of its own.
        const Int exact = V::IsEqual(V::And(lost, magnitude), V::Zero());
        bits = V::Or(bits, V::AndNot(exact, V::Set(1)));
        bits = V::AndNot(is_zero, V::Add(bits, V::ShiftLeft(scale, 23)));
        const Int half = V::HalfFromFloat(V::FromBits(bits));
        result = V::Or(half, V::And(sign, V::Set(0x8000)));
        result = V::AndNot(V::IsEqual(half, V::Zero()), result);
      } else {
        const Int field = V::Add(V::ShiftRight(bits, 23), scale);
        const Int out_of_range = V::Or(V::Sub(field, V::Set(1)), V::Sub(V::Set(254), field));
        trouble[v] = V::Or(trouble[v], V::AndNot(is_zero, out_of_range));
        bits = V::And(V::Add(bits, V::ShiftLeft(scale, 23)), V::Set(kept_));
        bits = V::Or(bits, V::And(sign, V::Set(INT32_MIN)));
        result = V::AndNot(is_zero, bits);
      }
      plain |= V::SignBits(trouble[v]) << (v * V::kLanes);
      before_[v] = sum[v];
      sum[v] = result;
    }
    return plain;
  }

  [[gnu::noinline]] void Repair(int first, int row_base, uint32_t plain, Int (&sum)[kVectors]) {
    uint32_t before[kPanel];
    uint32_t after[kPanel];
    for (int v = 0; v < kVectors; ++v) {
      V::Store(before + v * V::kLanes, before_[v]);
      V::Store(after + v * V::kLanes, sum[v]);
    }
    for (; plain != 0; plain &= plain - 1) {
      const int lane = __builtin_ctz(plain);
      after[lane] = PlainBlock(run_, first, row_base, lane, before[lane]);
    }
    for (int v = 0; v < kVectors; ++v) sum[v] = V::Load(after + v * V::kLanes);
  }

  const FusedRun& run_;
  const int fraction_bits_;
  const int products_;
  const int depth_;
  const int32_t kept_;
  Int before_[kVectors];  // The addends of the current block.
};

template <typename V, bool kIsHalf, int kBlock>
void RunFusedBlocks(const FusedRun& run) {
  if (run.a_rows != nullptr) {
    FusedCode<V, kIsHalf, kBlock, true>(run).Run();
  } else {
    FusedCode<V, kIsHalf, kBlock, false>(run).Run();
  }
}

template <typename V, bool kIsHalf>
void RunFusedSums(const FusedRun& run) {
  switch (run.arithmetic->block) {
    case 4: return RunFusedBlocks<V, kIsHalf, 4>(run);
    case 8: return RunFusedBlocks<V, kIsHalf, 8>(run);
    case 16: return RunFusedBlocks<V, kIsHalf, 16>(run);
    case 32: return RunFusedBlocks<V, kIsHalf, 32>(run);
    default: return;  // HasVectorCode excludes other blocks.
  }
}

template <typename V>
void RunFused(const FusedRun& run) {
  if (run.arithmetic->sum == ElementType::kF16) {
    RunFusedSums<V, true>(run);
  } else {
    RunFusedSums<V, false>(run);
  }
}

}  // namespace gemmd::sim
