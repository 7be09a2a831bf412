// SPDX-License-Identifier: Apache-2.0
//
// Copies tiles of A and B to shared memory with the copy engine: one thread fills a ring of stages,
// and the multiplying warps empty it. Each stage has two barriers: `full` signals that the stage's
// tiles have arrived, `empty` that every warp of the cluster has read them. So warps need not run
// in step, and no multiplying warp waits for another. After an abort, the ring stops before its
// last tile: the filling thread signals this with a stage that it does not fill.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mainloop/abort.cuh"
#include "kernels/cuda/device/mainloop/place.cuh"
#include "kernels/cuda/device/ptx/copy_engine_ptx.cuh"

namespace gemmd {

template <typename Row>
class TilePipe {
 public:
  static constexpr CudaRow kOf = kRow<Row>;
  static constexpr int kABytes = TileLinesOf(kOf, mma::Operand::kA).bytes();
  static constexpr int kBBytes = TileLinesOf(kOf, mma::Operand::kB).bytes();

  __device__ TilePipe(const MmaParameters& parameters, uint32_t shared)
      : parameters_(parameters), stages_(shared) {}

  // All threads of the block call this before anything else. Memory may be used afterwards.
  __device__ void Begin() const {
    if (ptx::ThreadInBlock() == 0) {
      ptx::FetchMap(&parameters_.a_map);
      ptx::FetchMap(&parameters_.b_map);
      for (int stage = 0; stage < kOf.stages; ++stage) {
        ptx::InitBarrier(Full(stage), 1);
        ptx::InitBarrier(Empty(stage), kCluster * WarpsOfTile(kOf));
      }
      ptx::StoreShared32(Stopped(), 0);
      if constexpr (kCluster > 1) ptx::InitBarrier(Looked(), 1);
      ptx::ShowBarriers();
    }
    if constexpr (kCluster == 1) {
      __syncthreads();
    } else {
      ptx::SynchronizeCluster();
    }
    if constexpr (BeginsEarly(kOf, ptx::kChip)) ptx::WaitForEarlierLaunches();
  }

  // The position of a tile in the ring. Each round flips the parity of the barriers.
  struct Cursor {
    int stage = 0;
    int parity = 0;

    __device__ void Advance() {
      const bool is_last = stage == kOf.stages - 1;
      stage = is_last ? 0 : stage + 1;
      parity ^= is_last ? 1 : 0;
    }
    __device__ void Advance(int stages) {
      stage += stages;
      parity ^= stage / kOf.stages & 1;
      stage %= kOf.stages;
    }
    // The bytes from the first stage to this one.
    __device__ int offset() const { return stage * kStageBytes; }
  };

  // One thread calls this to fill stages with every tile along k as they become empty, advancing
  // `at`. Checks for an abort where IsLook says so, and before the first tile if `looks_first`.
  // Returns false if the ring has stopped.
  __device__ bool Fill(const Place& place, Cursor& at, bool looks_first) const {
    for (int tile = 0; tile < parameters_.tiles_k; ++tile, at.Advance()) {
      // Every stage is empty at first.
      ptx::WaitForPhase(Empty(at.stage), at.parity ^ 1);
      if ((IsLook(tile) || (looks_first && tile == 0)) && IsAbortedForAll(tile)) {
        Stop(at);
        return false;
      }
      Copy(place, tile, at);
    }
    return true;
  }

  // Waits for every arrival that other blocks send to these barriers: the block must not exit
  // before. `end` is the place after the last tile; warps release all tiles but the last.
  __device__ void WaitForReleases(Cursor end) const {
    if constexpr (kCluster > 1) {
      for (int tile = 0; tile < kOf.stages; ++tile, end.Advance()) {
        const bool is_of_last_tile = tile == kOf.stages - 1;
        const bool was_filled = parameters_.tiles_k >= kOf.stages - tile;
        if (was_filled && !is_of_last_tile) ptx::WaitForPhase(Empty(end.stage), end.parity ^ 1);
      }
    }
  }

  __device__ void WaitFor(const Cursor& at) const { ptx::WaitForPhase(Full(at.stage), at.parity); }

  // Whether the tile has arrived, without waiting.
  __device__ bool IsFull(const Cursor& at) const {
    return ptx::IsPhaseOver(Full(at.stage), at.parity);
  }

  // Whether the ring has stopped; reliable for a warp that has waited for the unfilled stage.
  __device__ bool HasStopped() const { return ptx::LoadShared32(Stopped()) != 0; }

  // A warp signals that it is done with a stage to every block of the cluster, because each block
  // writes to the stages of all.
  __device__ void Release(int stage) const {
    if (ptx::IsElected()) {
      if constexpr (kCluster == 1) {
        ptx::Arrive(Empty(stage));
      } else {
#pragma unroll
        for (int block = 0; block < kCluster; ++block) ptx::ArriveAt(block, Empty(stage));
      }
    }
  }

 private:
  static constexpr int kCluster = ClusterOn(kOf, ptx::kChip);
  static constexpr int kMetadataLineBytes = MetadataLineBytes(kOf);
  static constexpr int kTileBytes = TileBytes(kOf);
  static constexpr int kStageBytes = StageBytes(kOf);
  static constexpr int kBarriersOffset = BarriersOffset(kOf);

  __device__ uint32_t Full(int stage) const {
    return stages_ + kBarriersOffset + stage * kBarrierBytes;
  }
  __device__ uint32_t Empty(int stage) const { return Full(stage) + kBarrierBytes / 2; }

  __device__ uint32_t Stopped() const { return stages_ + StopOffset(kOf); }
  // The result of the last abort check by the cluster's first block, and the barrier that signals
  // its arrival.
  __device__ uint32_t Found() const { return Stopped() + 4; }
  __device__ uint32_t Looked() const { return Stopped() + 8; }

  // Warps may leave filled stages unread: the block must not exit before their bytes have arrived.
  __device__ void Stop(Cursor& at) const {
    ptx::StoreShared32(Stopped(), 1);
    ptx::Arrive(Full(at.stage));
    at.Advance();
    Cursor filled = at;
    for (int stage = 1; stage < kOf.stages; ++stage, filled.Advance()) {
      ptx::WaitForPhase(Full(filled.stage), filled.parity ^ 1);
    }
  }

  // The blocks of a cluster fill each other's stages, so all of them stop at the same tile.
  __device__ bool IsAbortedForAll(int tile) const {
    if constexpr (kCluster == 1) return IsAborted(parameters_.abort);
    ptx::ArriveAndAnnounce(Looked(), sizeof(uint32_t));
    if (ptx::BlockInCluster() == 0) {
      const uint32_t found = IsAborted(parameters_.abort) ? 1 : 0;
      for (int block = 0; block < kCluster; ++block) ptx::StoreAt(block, Found(), found, Looked());
    }
    ptx::WaitForPhase(Looked(), tile / kTilesBetweenLooks % 2 ^ 1);
    return ptx::LoadShared32(Found()) != 0;
  }

  __device__ int MatrixOf(const OperandLines& operand, const Place& place) const {
    return operand.batch_stride_bytes == 0 ? 0 : static_cast<int>(place.batch);
  }

  // Copies the tile of the rows or columns from `first` on.
  template <mma::Operand kOperand>
  static __device__ void CopyOperand(uint32_t shared, const TileMap* map, int tile, int first,
                                     int matrix, uint32_t barrier) {
    constexpr TileLines kLines = TileLinesOf(kOf, kOperand);
    constexpr int kWords = kLines.line_bytes / 4;
    if constexpr (kLines.axis == LineAxis::kK) {
      ptx::CopyTileAsync(shared, map, tile * kWords, first, matrix, barrier);
    } else {
      constexpr int kElementsOfWord = 32 / mma::ContainerBits(kOf.instruction, kOperand);
      const int word = first / kElementsOfWord;
#pragma unroll
      for (int part = 0; part < kLines.parts; ++part) {
        ptx::CopyTileAsync(shared + part * (kLines.bytes() / kLines.parts), map,
                           word + part * kWords, tile * kOf.tile.k, matrix, barrier);
      }
    }
  }

  // Copies the factors of the tile's rows and columns.
  __device__ void CopyFactors(const Place& place, int tile, const Cursor& at) const {
    const FactorParameters& factors = parameters_.factors;
    constexpr int kRowBytes = kOf.tile.m * sizeof(float);
    constexpr int kColumnBytes = kOf.tile.n * sizeof(float);
    const uint32_t shared = stages_ + FactorsOffset(kOf) + at.stage * FactorBytes(kOf);
    ptx::CopyBytesAsync(
        shared, factors.a + place.batch * factors.a_of_matrix + tile * factors.a_lines + place.row,
        kRowBytes, Full(at.stage));
    ptx::CopyBytesAsync(
        shared + kRowBytes,
        factors.b + place.batch * factors.b_of_matrix + tile * factors.b_lines + place.column,
        kColumnBytes, Full(at.stage));
  }

  // Each block of a cluster copies a part of B's tile to all of them.
  __device__ void Copy(const Place& place, int tile, const Cursor& at) const {
    constexpr TileLines kA = TileLinesOf(kOf, mma::Operand::kA);
    constexpr TileLines kB = TileLinesOf(kOf, mma::Operand::kB);
    static_assert(kA.line_bytes <= 128 && kB.line_bytes <= 128, "the swizzle has 128 bytes");
    static_assert(kABytes % kSwizzleBytes == 0 && kBBytes / kCluster % kSwizzleBytes == 0,
                  "and counts from 1024");
    const uint32_t barrier = Full(at.stage);
    const uint32_t stage = stages_ + at.offset();
    const int row = static_cast<int>(place.row);
    const int column = static_cast<int>(place.column);
    const int a_matrix = MatrixOf(parameters_.a, place);
    const int b_matrix = MatrixOf(parameters_.b, place);
    ptx::ArriveAndAnnounce(barrier, kTileBytes + FactorBytes(kOf));
    if constexpr (kOf.splits_f32) {
      // The maps have the high part of a matrix before its low part.
      static_assert(kCluster == 1);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        ptx::CopyTileAsync(stage + part * kABytes, &parameters_.a_map, tile * (kA.line_bytes / 4),
                           row, 2 * a_matrix + part, barrier);
        ptx::CopyTileAsync(stage + 2 * kABytes + part * kBBytes, &parameters_.b_map,
                           tile * (kB.line_bytes / 4), column, 2 * b_matrix + part, barrier);
      }
      return;
    }
    if constexpr (kOf.scales_sums) CopyFactors(place, tile, at);
    CopyOperand<mma::Operand::kA>(stage, &parameters_.a_map, tile, row, a_matrix, barrier);
    if constexpr (kOf.instruction.is_sparse()) {
      ptx::CopyTileAsync(stage + kABytes + kBBytes, &parameters_.metadata_map,
                         tile * (kMetadataLineBytes / 4), row / kMetadataRows, a_matrix, barrier);
    }
    if constexpr (kCluster == 1) {
      CopyOperand<mma::Operand::kB>(stage + kABytes, &parameters_.b_map, tile, column, b_matrix,
                                    barrier);
    } else {
      constexpr int kLines = kB.lines / kCluster;
      const int first = ptx::BlockInCluster() * kLines;
      ptx::CopyTileToAllAsync(stage + kABytes + first * kB.line_bytes, &parameters_.b_map,
                              tile * (kB.line_bytes / 4), column + first, b_matrix, barrier,
                              (1 << kCluster) - 1);
    }
  }

  const MmaParameters& parameters_;
  uint32_t stages_;  // In shared memory.
};

}  // namespace gemmd
