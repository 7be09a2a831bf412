// SPDX-License-Identifier: Apache-2.0
//
// Stores a warpgroup's sums: encodes them into the warpgroup's area of shared memory, from which
// the copy engine writes them while the warpgroup continues to multiply. Stores D if its epilogue
// is only alpha, or RegisterEpilogue applies; for any other product, stores the sums unchanged, and
// LaunchEpilogueAlone makes D from them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/epilogue/epilogue.cuh"
#include "kernels/cuda/device/epilogue/register_epilogue.cuh"
#include "kernels/cuda/device/mainloop/place.cuh"
#include "kernels/cuda/device/mainloop/row_constants.cuh"
#include "kernels/cuda/device/ptx/wgmma_ptx.cuh"

namespace gemmd {

template <typename Row>
class WarpgroupStore {
 public:
  static constexpr CudaRow kOf = kRow<Row>;
  using Sum = WarpgroupSum<Row>;
  static constexpr int kDown = InstructionsDown(kOf);
  static constexpr int kSums = kWarpgroupSums<Row>;

  __device__ WarpgroupStore(const MmaParameters& parameters, uint32_t shared, int warpgroup,
                            int thread)
      : parameters_(parameters),
        room_(shared + kOf.stages * kStageBytes + warpgroup * kRoomBytes),
        first_row_(TakesTurns(kOf) ? 0 : warpgroup * kDown * kRows),
        warpgroup_(warpgroup),
        thread_(thread) {}

  // The epilogue's terms of two columns of the tile. If registers suffice, threads load them before
  // the tile is multiplied: memory latency is high while the copy engine is busy.
  using Ahead = ColumnTerms<2>;
  __device__ __forceinline__ Ahead Prepare(const Place& place) const {
    if constexpr (HasRoomToFinish(kOf) && !kHasFewRegisters) {
      if (parameters_.finishes_sums) return LoadAhead(place);
    }
    return {};
  }

  // Overwrites the sums.
  __device__ void Run(const Place& place, const Ahead& ahead, Sum (&sums)[kDown][kSums]) const {
    if constexpr (HasRoomToFinish(kOf)) {
      if (parameters_.finishes_sums) FinishSums(place, ahead, sums);
    }
    RunAsOneOf<AccumulatorType(kOf), ElementType::kBf16, ElementType::kF16, ElementType::kF32,
               ElementType::kE4m3, ElementType::kE5m2, ElementType::kS8>(place, sums);
  }

  // Call before the block ends.
  __device__ void Finish() const {
    if (thread_ == 0) ptx::WaitForStores();
  }

 private:
  // If sums and factors of blocks leave few registers, sums are finished a few at a time; f64 needs
  // twice as many registers.
  static constexpr bool kHasFewRegisters = kDown * kSums > (kOf.scales_sums ? 64 : 128);
  static constexpr int kPart = kHasFewRegisters ? 4 : std::is_same_v<Sum, int32_t> ? 8 : 16;

  __device__ __forceinline__ Ahead LoadAhead(const Place& place) const {
    return LoadColumnTerms<2>(parameters_.epilogue, [&](int i) {
      return static_cast<int>(place.column) + thread_ + i * kThreadsOfWarpgroup;
    });
  }

  // Threads exchange the column terms that they loaded, through the store's area of shared memory.
  __device__ __forceinline__ void FinishSums(const Place& place, const Ahead& prepared,
                                             Sum (&sums)[kDown][kSums]) const {
    static_assert(kOf.tile.n <= 2 * kThreadsOfWarpgroup && kOf.tile.n * 8 <= kRoomBytes);
    const Ahead ahead = kHasFewRegisters ? LoadAhead(place) : prepared;
    if (thread_ == 0) ptx::WaitUntilStoresHaveRead();
    ptx::SynchronizeWarpgroup(warpgroup_);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = thread_ + i * kThreadsOfWarpgroup;
      if (column < kOf.tile.n) {
        ptx::StoreShared64(room_ + column * 8, __float_as_uint(ahead.scales[i]),
                           __float_as_uint(ahead.biases[i]));
      }
    }
    ptx::SynchronizeWarpgroup(warpgroup_);
    using Epilogue = RegisterEpilogue<Sum, kSums, kPart, HasRoomToActivate(kOf)>;
    const int first = thread_ % 4 * 2;
    const auto terms_of = [&](const auto& offset_of) {
      typename Epilogue::Terms terms;
#pragma unroll
      for (int i = 0; i < Epilogue::kColumns; ++i) {
        const uint64_t both = ptx::LoadShared64(room_ + (first + offset_of(i)) * 8);
        terms.scales[i] = __uint_as_float(static_cast<uint32_t>(both));
        terms.biases[i] = __uint_as_float(static_cast<uint32_t>(both >> 32));
      }
      return terms;
    };
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      const int row = static_cast<int>(place.row) + first_row_ + i * kRows + thread_ / 32 * 16 +
                      thread_ % 32 / 4;
      Epilogue(parameters_.epilogue, place.batch, row, static_cast<int>(place.column) + first)
          .Run(terms_of, sums[i]);
    }
  }

  static constexpr int kStageBytes = StageBytes(kOf);
  static constexpr int kRoomBytes = StoreBytes(kOf);
  static constexpr int kRows = kOf.instruction.m;

  // Runs with the stored type, among the types that the row can store.
  template <ElementType kType, ElementType... kOthers>
  __device__ __forceinline__ void RunAsOneOf(const Place& place,
                                             const Sum (&sums)[kDown][kSums]) const {
    if constexpr (Stores(kOf, kType)) {
      if (parameters_.stored_type == kType) return RunAs<kType>(place, sums);
    }
    if constexpr (sizeof...(kOthers) > 0) RunAsOneOf<kOthers...>(place, sums);
  }

  template <ElementType kType>
  __device__ void RunAs(const Place& place, const Sum (&sums)[kDown][kSums]) const {
    constexpr int kBytes = BitsOf(kType) / 8;
    constexpr int kColumns = BlockOfRowBytes(kType) / kBytes;  // Columns per block.
    constexpr int kBlockBytes = kRows * BlockOfRowBytes(kType);
    constexpr int kBlocksOfTile = kOf.tile.n / kColumns;
    // Blocks that fit into the area.
    constexpr int kBlocks =
        kRoomBytes / kBlockBytes < kBlocksOfTile ? kRoomBytes / kBlockBytes : kBlocksOfTile;
    static_assert(kOf.tile.n % kColumns == 0 && kBlocksOfTile % kBlocks == 0);
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int first = 0; first < kBlocksOfTile; first += kBlocks) {
        if (thread_ == 0) ptx::WaitUntilStoresHaveRead();
        ptx::SynchronizeWarpgroup(warpgroup_);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) LayBlock<kType>(sums[i], first, block);
        ptx::ShowToCopyEngine();
        ptx::SynchronizeWarpgroup(warpgroup_);
        if (thread_ == 0) {
          const int row = static_cast<int>(place.row) + first_row_ + i * kRows;
#pragma unroll
          for (int block = 0; block < kBlocks; ++block) {
            const int column = static_cast<int>(place.column) + (first + block) * kColumns;
            if (column < parameters_.epilogue.n && row < parameters_.epilogue.m) {
              ptx::StoreTileAsync(&parameters_.d_map, column, row, static_cast<int>(place.batch),
                                  room_ + block * kBlockBytes);
            }
          }
          ptx::CommitStores();
        }
      }
    }
  }

  // Writes the sums of a block of columns to shared memory, swizzled for the copy engine: 16-byte
  // chunks are permuted by the row modulo 8, or in blocks of 64 bytes by the pair of rows modulo 4.
  template <ElementType kType>
  __device__ void LayBlock(const Sum (&sums)[kSums], int first, int block) const {
    constexpr int kBlockBytes = BlockOfRowBytes(kType);
    constexpr int kChunks = kBlockBytes / 16;
    const uint32_t target = room_ + block * kRows * kBlockBytes;
    const int lane = thread_ % 32;
    const int warp_row = thread_ / 32 * 16;
    // The offset of chunk `chunk` in row `row`.
    const auto offset_of = [](int row, int chunk) {
      return (chunk ^ (kBlockBytes == 128 ? row & 7 : row / 2 & 3)) << 4;
    };
    if constexpr (BitsOf(kType) == 8) {
      // Two columns at a time, of rows r and r + 8.
      const int row = warp_row + lane / 4;
      const uint32_t line = target + row * kBlockBytes + (lane & 3) * 2;
#pragma unroll
      for (int group = 0; group < 2 * kChunks; ++group) {
        const Sum* const of = sums + ((first + block) * 2 * kChunks + group) * 4;
        const uint32_t at = line + offset_of(row, group / 2) + group % 2 * 8;
        ptx::StoreShared16(at, BytePair<kType>(of[0], of[1]));
        ptx::StoreShared16(at + 8 * kBlockBytes, BytePair<kType>(of[2], of[3]));
      }
    } else if constexpr (BitsOf(kType) == 16) {
      // Four matrices at a time: rows 0 to 7 and 8 to 15 of 16 columns.
      const int row = warp_row + lane % 16;
      const uint32_t line = target + row * kBlockBytes;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; chunk += 2) {
        const Sum* const of = sums + ((first + block) * kChunks + chunk) * 4;
        const uint32_t words[4] = {Pair<kType>(of[0], of[1]), Pair<kType>(of[2], of[3]),
                                   Pair<kType>(of[4], of[5]), Pair<kType>(of[6], of[7])};
        ptx::StoreMatrices(line + offset_of(row, chunk + lane / 16), words);
      }
    } else {
      // Two columns at a time, of rows r and r + 8.
      const int row = warp_row + lane / 4;
      const uint32_t line = target + row * kBlockBytes + (lane & 1) * 8;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; chunk += 2) {
        const Sum* const of = sums + ((first + block) * kChunks + chunk) / 2 * 4;
        const uint32_t at = line + offset_of(row, chunk + (lane & 2) / 2);
        ptx::StoreShared64(at, Word<kType>(of[0]), Word<kType>(of[1]));
        ptx::StoreShared64(at + 8 * kBlockBytes, Word<kType>(of[2]), Word<kType>(of[3]));
      }
    }
  }

  // An alpha of 1 changes only the bits of NaNs, which are canonicalized later.
  __device__ float Element(float sum) const { return sum * parameters_.stored_alpha; }
  __device__ float Element(int32_t finished) const { return __int_as_float(finished); }
  template <ElementType kType>
  __device__ uint32_t Pair(Sum x0, Sum x1) const {
    return NarrowPairTo(kType, Element(x0), Element(x1));
  }
  template <ElementType kType>
  __device__ uint16_t BytePair(Sum x0, Sum x1) const {
    return EncodeBytePair<kType>(Element(x0), Element(x1));
  }
  template <ElementType kType>
  __device__ uint32_t Word(Sum x) const {
    if constexpr (kType == ElementType::kS32) return static_cast<uint32_t>(x);
    return __float_as_uint(Element(x));
  }

  const MmaParameters& parameters_;
  const uint32_t room_;
  const int first_row_;  // The warpgroup's first row in the tile.
  const int warpgroup_;
  const int thread_;
};

}  // namespace gemmd
