// SPDX-License-Identifier: Apache-2.0
//
// Instructions of PTX, and nothing else: registers in, registers out. The mnemonics of matrix
// instructions come from the table (kernels/mma/ptx.h) by way of a constant operand.
//
// Source: PTX ISA 9.0, sections 9.7.9.24 (cvt), 9.7.9.25 (copies) and 9.7.14 (matrix instructions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/mma/chip.h"
#include "kernels/mma/element_type.h"
#include "kernels/mma/ptx.h"

namespace gemmd::ptx {

// Text as the array of characters that asm takes.
template <typename Source, typename Indices>
struct Characters;
template <typename Source, size_t... kAt>
struct Characters<Source, std::index_sequence<kAt...>> {
  static constexpr char kText[] = {Source::kSource.view()[kAt]..., '\0'};
};

// Source::kSource is a StaticText.
template <typename Source>
struct Mnemonic : Characters<Source, std::make_index_sequence<Source::kSource.view().size()>> {};

// The chip for which this is compiled. The compiler of host code only parses kernels, so any chip
// serves.
#ifdef __CUDA_ARCH__
static_assert(mma::ChipFromCapability(__CUDA_ARCH__ / 10), "a chip that kernels/mma knows");
inline constexpr mma::Chip kChip = *mma::ChipFromCapability(__CUDA_ARCH__ / 10);
#else
inline constexpr mma::Chip kChip = mma::Chip::kSm90;
#endif

// These are read again each time; threadIdx and blockIdx might occupy registers for the whole
// kernel.
__device__ inline int ThreadInBlock() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
__device__ inline int BlockInGrid() {
  int block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  return block;
}

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Computes pointer + a * b in one instruction.
template <typename T>
__device__ inline const T* Advance(const T* pointer, int a, int b) {
  const T* result;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(result) : "r"(a), "r"(b), "l"(pointer));
  return result;
}

// A launch may begin and prepare while the previous one still runs. It calls this function before
// it reads or writes memory, to wait until all earlier launches have ended and their writes are
// visible. Once every block has called it, the next launch may begin in the same way.
__device__ inline void WaitForEarlierLaunches() {
  asm volatile(
      "griddepcontrol.launch_dependents;\n"
      "griddepcontrol.wait;" ::
          : "memory");
}

// Reads a word that others, including the host, may write concurrently.
__device__ inline uint64_t LoadOfSystem(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

// Copies 16 bytes to shared memory, or writes zeros if they are not there.
__device__ inline void CopyAsync(uint32_t shared, const std::byte* global, bool is_there) {
  asm volatile(
      "{\n"
      ".reg .pred ignores;\n"
      "setp.eq.s32 ignores, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, ignores;\n"
      "}"
      :
      : "r"(shared), "l"(global), "r"(static_cast<int>(is_there))
      : "memory");
}

__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `kGroups` groups of this thread's copies are under way.
template <int kGroups>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// A barrier for threads 0 to kThreads - 1 of the block.
template <int kThreads>
__device__ inline void SynchronizeThreads() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}
__device__ inline void Exit() { asm volatile("exit;"); }

// Whether this lane is the one that the warp elects.
__device__ inline bool IsElected() {
  uint32_t is_elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, elected;\n"
      "}"
      : "=r"(is_elected));
  return is_elected != 0;
}

// All warps of a group of four call these together, to change how many registers its threads have.
template <int kRegisters>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void LeaveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Loads four matrices of 8 lines of 16 bytes. Lane 8i + j gives the address of line j of matrix i;
// each lane gets word lane % 4 of line lane / 4 of each matrix.
__device__ inline void LoadMatrices(uint32_t (&words)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared)
               : "memory");
}

// Two f32 as f16 or bf16, the first in the low half; NaN becomes 0x7fff.
template <ElementType kType>
__device__ __forceinline__ uint32_t NarrowPair(float low, float high) {
  static_assert(kType == ElementType::kF16 || kType == ElementType::kBf16);
  uint32_t pair;
  if constexpr (kType == ElementType::kF16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

__device__ inline uint32_t LoadShared32(uint32_t shared) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(shared) : "memory");
  return value;
}

__device__ inline void StoreShared32(uint32_t shared, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(value) : "memory");
}

__device__ inline uint64_t LoadShared64(uint32_t shared) {
  uint64_t value;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(value) : "r"(shared) : "memory");
  return value;
}

// Converts f16 to f32, exactly; every NaN becomes the one that matrix instructions make.
__device__ inline float F32FromF16(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return (bits & 0x7fff) > 0x7c00 ? __uint_as_float(0x7fffffff) : value;
}

// Rounds two f32 to f16, to nearest even, and puts `low` in the low bits.
__device__ inline uint32_t PackF16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// mma: D and C are the same registers.
//
// Words of accumulators are float for f32, double for f64, and uint32_t for s32 and pairs of f16.
template <typename Source>
__device__ inline void Mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("%10 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void Mma(uint32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("%10 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void Mma(uint32_t (&c)[2], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("%8 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
      : "+r"(c[0]), "+r"(c[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void Mma(float (&c)[4], const uint32_t (&a)[2], const uint32_t (&b)[1]) {
  asm("%7 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void Mma(uint32_t (&c)[4], const uint32_t (&a)[2], const uint32_t (&b)[1]) {
  asm("%7 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void Mma(uint32_t (&c)[2], const uint32_t (&a)[2], const uint32_t (&b)[1]) {
  asm("%5 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
      : "+r"(c[0]), "+r"(c[1])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void Mma(uint32_t (&c)[2], const uint32_t (&a)[1], const uint32_t (&b)[1]) {
  asm("%4 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(c[0]), "+r"(c[1])
      : "r"(a[0]), "r"(b[0]), "C"(Mnemonic<Source>::kText));
}

// mma with f64.
template <typename Source>
__device__ inline void Mma(double (&c)[2], const double (&a)[1], const double (&b)[1]) {
  asm("%4 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(c[0]), "+d"(c[1])
      : "d"(a[0]), "d"(b[0]), "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void Mma(double (&c)[4], const double (&a)[2], const double (&b)[1]) {
  asm("%7 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(b[0]), "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void Mma(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
  asm("%10 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]),
        "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void Mma(double (&c)[4], const double (&a)[8], const double (&b)[4]) {
  asm("%16 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, "
      "{%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
        "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]), "C"(Mnemonic<Source>::kText));
}

// mma.m8n8k4 with f16, which makes four products; D and C may have different types.
template <typename Source>
__device__ inline void Mma(float (&c)[8], const uint32_t (&a)[2], const uint32_t (&b)[2]) {
  asm("%12 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
      "{%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
        "+f"(c[7])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void Mma(uint32_t (&c)[4], const uint32_t (&a)[2], const uint32_t (&b)[2]) {
  asm("%8 {%0, %1, %2, %3}, {%4, %5}, {%6, %7}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void Mma(float (&d)[8], const uint32_t (&a)[2], const uint32_t (&b)[2],
                           const uint32_t (&c)[4]) {
  asm("%16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, {%12, %13, %14, %15};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]),
        "C"(Mnemonic<Source>::kText));
}

// mma.sp with ordered metadata and sparsity selector 0.
template <typename Source>
__device__ inline void MmaSparse(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                                 uint32_t metadata) {
  asm("%13 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x0;"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
        "r"(metadata), "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void MmaSparse(uint32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                                 uint32_t metadata) {
  asm("%13 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x0;"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
        "r"(metadata), "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void MmaSparse(uint32_t (&c)[2], const uint32_t (&a)[4], const uint32_t (&b)[4],
                                 uint32_t metadata) {
  asm("%11 {%0, %1}, {%2, %3, %4, %5}, {%6, %7, %8, %9}, {%0, %1}, %10, 0x0;"
      : "+r"(c[0]), "+r"(c[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
        "r"(metadata), "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void MmaSparse(float (&c)[4], const uint32_t (&a)[2], const uint32_t (&b)[2],
                                 uint32_t metadata) {
  asm("%9 {%0, %1, %2, %3}, {%4, %5}, {%6, %7}, {%0, %1, %2, %3}, %8, 0x0;"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(metadata), "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void MmaSparse(uint32_t (&c)[4], const uint32_t (&a)[2], const uint32_t (&b)[2],
                                 uint32_t metadata) {
  asm("%9 {%0, %1, %2, %3}, {%4, %5}, {%6, %7}, {%0, %1, %2, %3}, %8, 0x0;"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(metadata), "C"(Mnemonic<Source>::kText));
}
template <typename Source>
__device__ inline void MmaSparse(uint32_t (&c)[2], const uint32_t (&a)[2], const uint32_t (&b)[2],
                                 uint32_t metadata) {
  asm("%7 {%0, %1}, {%2, %3}, {%4, %5}, {%0, %1}, %6, 0x0;"
      : "+r"(c[0]), "+r"(c[1])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(metadata), "C"(Mnemonic<Source>::kText));
}

}  // namespace gemmd::ptx
