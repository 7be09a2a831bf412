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

// Vectors of eight 32-bit lanes.
struct Avx2 {
  using Int = __m256i;
  using Float = __m256;
  using Double = __m256d;
  static constexpr int kLanes = 8;

  static Int Load(const int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Int Load(const uint32_t* p) { return Load(reinterpret_cast<const int32_t*>(p)); }
  static void Store(uint32_t* p, Int x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  static Int Set(int32_t x) { return _mm256_set1_epi32(x); }
  static Int Zero() { return _mm256_setzero_si256(); }
  static Int Add(Int x, Int y) { return _mm256_add_epi32(x, y); }
  static Int Sub(Int x, Int y) { return _mm256_sub_epi32(x, y); }
  static Int Max(Int x, Int y) { return _mm256_max_epi32(x, y); }
  static Int And(Int x, Int y) { return _mm256_and_si256(x, y); }
  static Int AndNot(Int x, Int y) { return _mm256_andnot_si256(x, y); }  // ~x & y.
  static Int Or(Int x, Int y) { return _mm256_or_si256(x, y); }
  static Int Xor(Int x, Int y) { return _mm256_xor_si256(x, y); }
  static Int Abs(Int x) { return _mm256_abs_epi32(x); }
  // x with the sign of y; 0 if y is 0.
  static Int WithSign(Int x, Int y) { return _mm256_sign_epi32(x, y); }
  // The product of the low 16 bits plus that of the high 16 bits.
  static Int MultiplyPairs(Int x, Int y) { return _mm256_madd_epi16(x, y); }
  static Int ShiftRightBy(Int x, Int counts) { return _mm256_srlv_epi32(x, counts); }
  static Int ShiftLeft(Int x, int count) { return _mm256_slli_epi32(x, count); }
  static Int ShiftRight(Int x, int count) { return _mm256_srli_epi32(x, count); }
  static Int SignMask(Int x) { return _mm256_srai_epi32(x, 31); }
  // All ones where true.
  static Int IsGreater(Int x, Int y) { return _mm256_cmpgt_epi32(x, y); }
  static Int IsEqual(Int x, Int y) { return _mm256_cmpeq_epi32(x, y); }
  // One bit for each lane whose sign bit is set.
  static uint32_t SignBits(Int x) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(x)));
  }

  static Float ToFloat(Int x) { return _mm256_cvtepi32_ps(x); }
  static Int Bits(Float x) { return _mm256_castps_si256(x); }
  static Float FromBits(Int x) { return _mm256_castsi256_ps(x); }
  static Float LoadFloat(const float* p) { return _mm256_loadu_ps(p); }
  static Float SetFloat(float x) { return _mm256_set1_ps(x); }
  static Float AddFloat(Float x, Float y) { return _mm256_add_ps(x, y); }
  static Float MultiplyFloat(Float x, Float y) { return _mm256_mul_ps(x, y); }
  static Float MultiplyAdd(Float x, Float y, Float z) { return _mm256_fmadd_ps(x, y, z); }
  static Int IsNan(Float x) { return Bits(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }
  // Rounds to nearest even, into 16 bits of each lane.
  static Int HalfFromFloat(Float x) {
    return _mm256_cvtepu16_epi32(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static Float FloatFromHalf(Int x) {
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    return _mm256_cvtph_ps(packed);
  }

  static constexpr int kDoubles = 4;
  static Double LoadDouble(const double* p) { return _mm256_loadu_pd(p); }
  static void StoreDouble(double* p, Double x) { _mm256_storeu_pd(p, x); }
  static Double SetDouble(double x) { return _mm256_set1_pd(x); }
  static Double MultiplyAddDouble(Double x, Double y, Double z) { return _mm256_fmadd_pd(x, y, z); }
  static bool HasNan(Double x) {
    return _mm256_movemask_pd(_mm256_cmp_pd(x, x, _CMP_UNORD_Q)) != 0;
  }
};

}  // namespace

const VectorCode kAvx2Code = {.fused = RunFused<Avx2>,
                              .integers = RunIntegers<Avx2>,
                              .bits = RunBits<Avx2>,
                              .f64 = RunF64<Avx2>,
                              .multiply_adds = RunMultiplyAdds<Avx2>};

}  // namespace gemmd::sim
