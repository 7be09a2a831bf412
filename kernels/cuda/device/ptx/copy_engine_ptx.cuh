// SPDX-License-Identifier: Apache-2.0
//
// Instructions of the copy engine, of the barriers in shared memory that count the bytes it copies,
// and of clusters, whose blocks share its copies.
//
// Source: PTX ISA 9.0, sections 9.7.9.25 (copies) and 9.7.13.15 (mbarrier).
#pragma once

#include <cstdint>

namespace gemmd::ptx {

// Initialises a barrier in shared memory. A phase of it ends with the last of `arrivals` and the
// last byte that was announced.
__device__ inline void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes barriers that were initialised visible to the copy engine.
__device__ inline void ShowBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives at the barrier at the same address in a block of the cluster. This orders only this
// block's accesses: a cluster-wide release would wait for all memory accesses.
__device__ inline void ArriveAt(int block, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}"
      :
      : "r"(barrier), "r"(block)
      : "memory");
}
__device__ inline void ArriveAndAnnounce(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Waits until the phase of the given parity has ended.
__device__ inline void WaitForPhase(uint32_t barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}"
      :
      : "r"(barrier), "r"(parity)
      : "memory");
}

// Whether the phase is over, without waiting.
__device__ inline bool IsPhaseOver(uint32_t barrier, int parity) {
  uint32_t is_over;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
      "selp.b32 %0, 1, 0, done;\n"
      "}"
      : "=r"(is_over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return is_over != 0;
}

// Writes a word to the same place of a block of the cluster, and counts its bytes at that block's
// barrier.
__device__ inline void StoreAt(int block, uint32_t shared, uint32_t value, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .b32 there, counter;\n"
      "mapa.shared::cluster.u32 there, %0, %3;\n"
      "mapa.shared::cluster.u32 counter, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [there], %1, [counter];\n"
      "}"
      :
      : "r"(shared), "r"(value), "r"(barrier), "r"(block)
      : "memory");
}

// Prefetches a map for the copy engine.
__device__ inline void FetchMap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the box at (x, y, z) of a map; its bytes count at the barrier. On sm_120, which has no
// clusters, shared::cluster would be a function call.
__device__ inline void CopyTileAsync(uint32_t shared, const void* map, int x, int y, int z,
                                     uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4}], [%5];"
      :
      : "r"(shared), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}

// Copies bytes; their number and both addresses are multiples of 16.
__device__ inline void CopyBytesAsync(uint32_t shared, const void* from, int bytes,
                                      uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(shared), "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Copies the box to every block of the cluster for which `blocks` has a bit: to the same place in
// each, with the bytes counted at that block's own barrier.
__device__ inline void CopyTileToAllAsync(uint32_t shared, const void* map, int x, int y, int z,
                                          uint32_t barrier, int blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
      :
      : "r"(shared), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier),
        "h"(static_cast<uint16_t>(blocks))
      : "memory");
}

// The number of this block in its cluster.
__device__ inline int BlockInCluster() {
  int block;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
  return block;
}
// A barrier for all threads of all blocks of the cluster. It orders no memory.
__device__ inline void SynchronizeCluster() {
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

}  // namespace gemmd::ptx
