// SPDX-License-Identifier: Apache-2.0
//
// wgmma: a warpgroup multiplies matrices in shared memory, asynchronously: its sums must not be
// accessed before WaitForProducts returns.
//
// Source: PTX ISA 9.0, section 9.7.15.5.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx/ptx.cuh"

namespace gemmd::ptx {

// Orders this thread's accesses to registers and shared memory before the following products.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// The products since the last call are a group.
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `kGroups` groups are under way.
template <int kGroups>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// Keeps the compiler from using the value's register for something else before this.
__device__ inline void KeepRegister(uint32_t value) { asm volatile("" ::"r"(value) : "memory"); }

// Describes lines of 32, 64 or 128 bytes in shared memory, swizzled by the copy engine: eight lines
// follow each other, and the eight after them follow those. `shared` lies within the first line. If
// lines run across k, their next parts begin kPartBytes later; along k, kPartBytes is not used.
template <int kLineBytes, int kPartBytes = 16>
__device__ inline uint64_t DescribeLines(uint32_t shared) {
  static_assert(kLineBytes == 32 || kLineBytes == 64 || kLineBytes == 128);
  constexpr uint64_t kSwizzle = uint64_t{kLineBytes == 128 ? 1 : kLineBytes == 64 ? 2 : 3} << 62;
  constexpr uint64_t kStrideOfEightLines = uint64_t{8 * kLineBytes / 16} << 32;
  constexpr uint64_t kStrideOfParts = uint64_t{kPartBytes / 16} << 16;
  return kSwizzle | kStrideOfEightLines | kStrideOfParts | (shared & 0x3ffff) >> 4;
}
// The difference of descriptions for an address difference of `bytes`.
constexpr uint64_t DescribedBytes(int bytes) { return static_cast<uint64_t>(bytes / 16); }

// Immediates after the operands: for floats the signs of A and B; for 16-bit types also whether
// their lines run across k.
template <typename Source>
struct WgmmaTail {
  static constexpr int kBits = Source::kOperandBits;
  static constexpr bool kIsInteger = Source::kIsInteger;
  static constexpr char Flag(bool is_set) { return kBits != 16 ? ' ' : is_set ? '1' : '0'; }
  static constexpr char kText[] = {
      kIsInteger ? ' ' : ',',  kIsInteger ? ' ' : '1',     kIsInteger ? ' ' : ',',
      kIsInteger ? ' ' : '1',  kBits == 16 ? ',' : ' ',    Flag(Source::kTransposesA),
      kBits == 16 ? ',' : ' ', Flag(Source::kTransposesB), '\0'};
};

// clang-format off
#define GEMMD_TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define GEMMD_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define GEMMD_16 GEMMD_TEN() "%10,%11,%12,%13,%14,%15"
#define GEMMD_32 GEMMD_TEN() GEMMD_TEN(1) GEMMD_TEN(2) "%30,%31"
#define GEMMD_64 GEMMD_TEN() GEMMD_TEN(1) GEMMD_TEN(2) GEMMD_TEN(3) GEMMD_TEN(4) GEMMD_TEN(5) "%60,%61,%62,%63"
#define GEMMD_96 GEMMD_TEN() GEMMD_TEN(1) GEMMD_TEN(2) GEMMD_TEN(3) GEMMD_TEN(4) GEMMD_TEN(5) GEMMD_TEN(6) \
  GEMMD_TEN(7) GEMMD_TEN(8) "%90,%91,%92,%93,%94,%95"
#define GEMMD_128 GEMMD_TEN() GEMMD_TEN(1) GEMMD_TEN(2) GEMMD_TEN(3) GEMMD_TEN(4) GEMMD_TEN(5) GEMMD_TEN(6) \
  GEMMD_TEN(7) GEMMD_TEN(8) GEMMD_TEN(9) GEMMD_TEN(10) GEMMD_TEN(11) "%120,%121,%122,%123,%124,%125,%126,%127"
#define GEMMD_EIGHT_SUMS(c, i) "+" c(sums[i]), "+" c(sums[i + 1]), "+" c(sums[i + 2]), "+" c(sums[i + 3]), \
  "+" c(sums[i + 4]), "+" c(sums[i + 5]), "+" c(sums[i + 6]), "+" c(sums[i + 7])
#define GEMMD_SUMS_OF_32(c, i) GEMMD_EIGHT_SUMS(c, i), GEMMD_EIGHT_SUMS(c, i + 8), GEMMD_EIGHT_SUMS(c, i + 16), \
  GEMMD_EIGHT_SUMS(c, i + 24)
#define GEMMD_8_SUMS(c) GEMMD_EIGHT_SUMS(c, 0)
#define GEMMD_16_SUMS(c) GEMMD_EIGHT_SUMS(c, 0), GEMMD_EIGHT_SUMS(c, 8)
#define GEMMD_32_SUMS(c) GEMMD_SUMS_OF_32(c, 0)
#define GEMMD_64_SUMS(c) GEMMD_SUMS_OF_32(c, 0), GEMMD_SUMS_OF_32(c, 32)
#define GEMMD_96_SUMS(c) GEMMD_64_SUMS(c), GEMMD_SUMS_OF_32(c, 64)
#define GEMMD_128_SUMS(c) GEMMD_96_SUMS(c), GEMMD_SUMS_OF_32(c, 96)
#define GEMMD_WGMMA_TEXT(count, a_at, b_at, sparse, adds_at, name_at, tail_at)                          \
  "{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #adds_at ", 0;\n%" #name_at " {" GEMMD_##count              \
  "}, %" #a_at ", %" #b_at sparse ", adds %" #tail_at ";\n}"
#define GEMMD_WGMMA(type, constraint, count, a_at, b_at, adds_at, name_at, tail_at)                     \
  template <typename Source>                                                                             \
  __device__ inline void Wgmma(type (&sums)[count], uint64_t a, uint64_t b, bool adds) {                 \
    asm volatile(GEMMD_WGMMA_TEXT(count, a_at, b_at, "", adds_at, name_at, tail_at)                      \
                 : GEMMD_##count##_SUMS(constraint)                                                      \
                 : "l"(a), "l"(b), "r"(static_cast<int>(adds)), "C"(Mnemonic<Source>::kText),            \
                   "C"(WgmmaTail<Source>::kText));                                                       \
  }
#define GEMMD_SPARSE_WGMMA(type, constraint, count, a_at, b_at, adds_at, name_at, tail_at, word_at, selector_at) \
  template <typename Source, int kSelector>                                                              \
  __device__ inline void SparseWgmma(type (&sums)[count], uint64_t a, uint64_t b, uint32_t metadata,     \
                                     bool adds) {                                                        \
    asm volatile(GEMMD_WGMMA_TEXT(count, a_at, b_at, ", %" #word_at ", %" #selector_at, adds_at,         \
                                  name_at, tail_at)                                                      \
                 : GEMMD_##count##_SUMS(constraint)                                                      \
                 : "l"(a), "l"(b), "r"(static_cast<int>(adds)), "C"(Mnemonic<Source>::kText),            \
                   "C"(WgmmaTail<Source>::kText), "r"(metadata), "n"(kSelector));                        \
  }
// clang-format on

// Adds A times B to the sums, or makes the product the sums if `adds` is false. `a` and `b`
// describe one instruction's lines.
GEMMD_WGMMA(float, "f", 8, 8, 9, 10, 11, 12)
GEMMD_WGMMA(float, "f", 16, 16, 17, 18, 19, 20)
GEMMD_WGMMA(float, "f", 32, 32, 33, 34, 35, 36)
GEMMD_WGMMA(float, "f", 64, 64, 65, 66, 67, 68)
GEMMD_WGMMA(float, "f", 96, 96, 97, 98, 99, 100)
GEMMD_WGMMA(float, "f", 128, 128, 129, 130, 131, 132)
GEMMD_WGMMA(int32_t, "r", 8, 8, 9, 10, 11, 12)
GEMMD_WGMMA(int32_t, "r", 16, 16, 17, 18, 19, 20)
GEMMD_WGMMA(int32_t, "r", 32, 32, 33, 34, 35, 36)
GEMMD_WGMMA(int32_t, "r", 64, 64, 65, 66, 67, 68)
GEMMD_WGMMA(int32_t, "r", 96, 96, 97, 98, 99, 100)
GEMMD_WGMMA(int32_t, "r", 128, 128, 129, 130, 131, 132)

// The same for a sparse A: `a` describes its values, and `metadata` is this thread's word.
GEMMD_SPARSE_WGMMA(float, "f", 64, 64, 65, 66, 67, 68, 69, 70)
GEMMD_SPARSE_WGMMA(float, "f", 96, 96, 97, 98, 99, 100, 101, 102)
GEMMD_SPARSE_WGMMA(int32_t, "r", 64, 64, 65, 66, 67, 68, 69, 70)
GEMMD_SPARSE_WGMMA(int32_t, "r", 96, 96, 97, 98, 99, 100, 101, 102)

#undef GEMMD_SPARSE_WGMMA
#undef GEMMD_WGMMA
#undef GEMMD_WGMMA_TEXT
#undef GEMMD_128_SUMS
#undef GEMMD_96_SUMS
#undef GEMMD_64_SUMS
#undef GEMMD_32_SUMS
#undef GEMMD_16_SUMS
#undef GEMMD_8_SUMS
#undef GEMMD_SUMS_OF_32
#undef GEMMD_EIGHT_SUMS
#undef GEMMD_128
#undef GEMMD_96
#undef GEMMD_64
#undef GEMMD_32
#undef GEMMD_16
#undef GEMMD_8
#undef GEMMD_TEN

// Stores four matrices of 8 lines of 16 bytes, the inverse of LoadMatrices: lane 8i + j gives the
// address of line j of matrix i; each lane has word lane % 4 of line lane / 4 of each matrix.
__device__ inline void StoreMatrices(uint32_t shared, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(shared), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ inline void StoreShared16(uint32_t shared, uint16_t value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(shared), "h"(value) : "memory");
}
__device__ inline void StoreShared64(uint32_t shared, uint32_t low, uint32_t high) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" : : "r"(shared), "r"(low), "r"(high) : "memory");
}

// Makes what this thread has written to shared memory visible to the copy engine.
__device__ inline void ShowToCopyEngine() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Copies a box from shared memory to (x, y, z) of a map; parts beyond the map are not written.
__device__ inline void StoreTileAsync(const void* map, int x, int y, int z, uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
               :
               : "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared)
               : "memory");
}
// The stores of this thread since the last call are a group.
__device__ inline void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all groups of this thread have read shared memory.
__device__ inline void WaitUntilStoresHaveRead() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Waits until all groups of this thread have written.
__device__ inline void WaitForStores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// A barrier for the 128 threads of the block's warpgroup `number`.
__device__ inline void SynchronizeWarpgroup(int number) {
  asm volatile("bar.sync %0, 128;" ::"r"(number + 1) : "memory");
}
// If two warpgroups take turns, waits until the other one has passed the turn.
__device__ inline void WaitForTurn(int number) {
  asm volatile("bar.sync %0, 256;" ::"r"(number + 3) : "memory");
}
__device__ inline void GiveTurnTo(int number) {
  asm volatile("bar.arrive %0, 256;" ::"r"(number + 3) : "memory");
}

}  // namespace gemmd::ptx
