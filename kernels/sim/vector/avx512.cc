// SPDX-License-Identifier: Apache-2.0
//
// Compiled for instruction sets that the rest of the program does not require: nothing here runs
// before code.cc has checked the processor.
#include <immintrin.h>

#include <cstdint>

#include "kernels/sim/vector/fused.h"
#include "kernels/sim/vector/runs.h"
#include "kernels/sim/vector/simple.h"

namespace gemmd::sim {
namespace {

// Vectors of sixteen 32-bit lanes.
struct Avx512 {
  using Int = __m512i;
  using Float = __m512;
  using Double = __m512d;
  static constexpr int kLanes = 16;

  static Int Load(const int32_t* p) { return _mm512_loadu_si512(p); }
  static Int Load(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static void Store(uint32_t* p, Int x) { _mm512_storeu_si512(p, x); }
  static Int Set(int32_t x) { return _mm512_set1_epi32(x); }
  static Int Zero() { return _mm512_setzero_si512(); }
  static Int Add(Int x, Int y) { return _mm512_add_epi32(x, y); }
  static Int Sub(Int x, Int y) { return _mm512_sub_epi32(x, y); }
  static Int Max(Int x, Int y) { return _mm512_max_epi32(x, y); }
  static Int And(Int x, Int y) { return _mm512_and_si512(x, y); }
  static Int AndNot(Int x, Int y) { return _mm512_andnot_si512(x, y); }  // ~x & y.
  static Int Or(Int x, Int y) { return _mm512_or_si512(x, y); }
  static Int Xor(Int x, Int y) { return _mm512_xor_si512(x, y); }
  static Int Abs(Int x) { return _mm512_abs_epi32(x); }
  // x with the sign of y; x must be 0 if y is.
  static Int WithSign(Int x, Int y) {
    return _mm512_mask_sub_epi32(x, _mm512_movepi32_mask(y), _mm512_setzero_si512(), x);
  }
  // The product of the low 16 bits plus that of the high 16 bits.
  static Int MultiplyPairs(Int x, Int y) { return _mm512_madd_epi16(x, y); }
  static Int ShiftRightBy(Int x, Int counts) { return _mm512_srlv_epi32(x, counts); }
  static Int ShiftLeft(Int x, int count) { return _mm512_sll_epi32(x, _mm_cvtsi32_si128(count)); }
  static Int ShiftRight(Int x, int count) { return _mm512_srl_epi32(x, _mm_cvtsi32_si128(count)); }
  static Int SignMask(Int x) { return _mm512_srai_epi32(x, 31); }
  // All ones where true.
  static Int IsGreater(Int x, Int y) { return _mm512_movm_epi32(_mm512_cmpgt_epi32_mask(x, y)); }
  static Int IsEqual(Int x, Int y) { return _mm512_movm_epi32(_mm512_cmpeq_epi32_mask(x, y)); }
  // One bit for each lane whose sign bit is set.
  static uint32_t SignBits(Int x) { return _mm512_movepi32_mask(x); }

  static Float ToFloat(Int x) { return _mm512_cvtepi32_ps(x); }
  static Int Bits(Float x) { return _mm512_castps_si512(x); }
  static Float FromBits(Int x) { return _mm512_castsi512_ps(x); }
  static Float LoadFloat(const float* p) { return _mm512_loadu_ps(p); }
  static Float SetFloat(float x) { return _mm512_set1_ps(x); }
  static Float AddFloat(Float x, Float y) { return _mm512_add_ps(x, y); }
  static Float MultiplyFloat(Float x, Float y) { return _mm512_mul_ps(x, y); }
  static Float MultiplyAdd(Float x, Float y, Float z) { return _mm512_fmadd_ps(x, y, z); }
  static Int IsNan(Float x) { return _mm512_movm_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q)); }
  // Rounds to nearest even, into 16 bits of each lane.
  static Int HalfFromFloat(Float x) {
    return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static Float FloatFromHalf(Int x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }

  static constexpr int kDoubles = 8;
  static Double LoadDouble(const double* p) { return _mm512_loadu_pd(p); }
  static void StoreDouble(double* p, Double x) { _mm512_storeu_pd(p, x); }
  static Double SetDouble(double x) { return _mm512_set1_pd(x); }
  static Double MultiplyAddDouble(Double x, Double y, Double z) { return _mm512_fmadd_pd(x, y, z); }
  static bool HasNan(Double x) { return _mm512_cmp_pd_mask(x, x, _CMP_UNORD_Q) != 0; }
};

}  // namespace

const VectorCode kAvx512Code = {.fused = RunFused<Avx512>,
                                .integers = RunIntegers<Avx512>,
                                .bits = RunBits<Avx512>,
                                .f64 = RunF64<Avx512>,
                                .multiply_adds = RunMultiplyAdds<Avx512>};

}  // namespace gemmd::sim
