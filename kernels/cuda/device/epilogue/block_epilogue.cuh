// SPDX-License-Identifier: Apache-2.0
//
// Stores a block's accumulators to D.
#pragma once

#include <cstddef>

#include "kernels/cuda/device/epilogue/epilogue.cuh"
#include "kernels/cuda/device/mainloop/place.cuh"
#include "kernels/cuda/device/mainloop/warp_sums.cuh"

namespace gemmd {

template <typename Row>
class BlockEpilogue {
 public:
  using Sum = typename WarpSums<Row>::Sum;

  // `shared` may be reused once every multiplying thread has called Run.
  __device__ BlockEpilogue(const EpilogueParameters& epilogue, const Place& place,
                           const WarpSums<Row>& sums, std::byte* shared)
      : epilogue_(epilogue), place_(place), sums_(sums), tile_(reinterpret_cast<Sum*>(shared)) {}

  // Stores whole tiles of D from registers. Other tiles go through shared memory, so that the
  // epilogue's code exists only once, not per register.
  __device__ void Run() const {
    if constexpr (kStoresPairs) {
      if (TakesWholePairs(epilogue_, place_.row, place_.column, kOf.tile.m, kOf.tile.n)) {
        StoreSums();
        return;
      }
    }
    ptx::SynchronizeThreads<kOf.threads()>();  // After this, every warp has read its fragments.
    Stage();
    ptx::SynchronizeThreads<kOf.threads()>();
    if (!CanStoreDirectly(epilogue_)) {
      ApplyEpilogueToTile(epilogue_, place_.batch, place_.row, place_.column, tile_, kOf.tile.m,
                          kOf.tile.n, kStride, place_.thread, kOf.threads());
      return;
    }
    const bool is_row_major = epilogue_.d.order == Order::kRowMajor;
    constexpr int kPairs = kOf.tile.n / 2;
#pragma unroll 1
    for (int i = place_.thread; i < kOf.tile.m * kPairs; i += kOf.threads()) {
      const int row = is_row_major ? i / kPairs : i % kOf.tile.m;
      const int column = 2 * (is_row_major ? i % kPairs : i / kOf.tile.m);
      const Sum* const pair = tile_ + row * kStride + column;
      StoreDirectly(epilogue_, place_.batch, place_.row + row, place_.column + column, pair[0],
                    pair[1]);
    }
  }

 private:
  static constexpr CudaRow kOf = kRow<Row>;
  static constexpr mma::Instruction kInstruction = kOf.instruction;
  static constexpr int kStride = AccumulatorStride(kOf);
  // Whether pairs of accumulators that are neighbours in a lane and in D are stored from registers.
  // This needs code for each pair, so only the fast rows, those that load ahead, do it.
  static constexpr bool kStoresPairs =
      HasRingOn(kOf, ptx::kChip) && kInstruction.d != ElementType::kF64;

  __device__ void StoreSums() const {
    if constexpr (kInstruction.d == ElementType::kS32) {
      StoreSumsAs<ElementType::kS32>();
    } else if (epilogue_.d.type == ElementType::kF32) {
      StoreSumsAs<ElementType::kF32>();
    } else if (epilogue_.d.type == ElementType::kF16) {
      StoreSumsAs<ElementType::kF16>();
    } else {
      StoreSumsAs<ElementType::kBf16>();
    }
  }

  // Four lanes write neighbouring elements of a row: a sector of 32 bytes, or half of one.
  template <ElementType kType>
  __device__ void StoreSumsAs() const {
    constexpr int kBytes = BitsOf(kType) / 8;
    const mma::Position first = PositionInFragment<Row, mma::Operand::kD>(place_.lane, 0);
    std::byte* const target =
        ElementOfRow<kType>(epilogue_, place_.batch, place_.row + place_.warp_row + first.row,
                            place_.column + place_.warp_column + first.column);
#pragma unroll
    for (int i = 0; i < WarpSums<Row>::kDown; ++i) {
#pragma unroll
      for (int e = 0; e < WarpSums<Row>::kElements; e += 2) {
        // Positions relative to element 0 are the same in all lanes.
        const mma::Position at = PositionInFragment<Row, mma::Operand::kD>(0, e);
        std::byte* const row =
            target + (i * kOf.instruction_rows() + at.row) * epilogue_.d.line_stride_bytes +
            at.column * kBytes;
#pragma unroll
        for (int j = 0; j < WarpSums<Row>::kAcross; ++j) {
          StorePairOf<kType>(epilogue_, row + j * kInstruction.n * kBytes, sums_.At(i, j, e),
                             sums_.At(i, j, e + 1));
        }
      }
    }
  }

  // Writes the accumulators to their places in the tile.
  __device__ void Stage() const {
#pragma unroll
    for (int i = 0; i < WarpSums<Row>::kDown; ++i) {
#pragma unroll
      for (int j = 0; j < WarpSums<Row>::kAcross; ++j) {
#pragma unroll
        for (int e = 0; e < WarpSums<Row>::kElements; ++e) {
          const mma::Position at = PositionInFragment<Row, mma::Operand::kD>(place_.lane, e);
          const int row = place_.warp_row + i * kOf.instruction_rows() +
                          kInstruction.m * at.product + LineInTile<Row>(at.row);
          const int column = place_.warp_column + j * kInstruction.n + LineInTile<Row>(at.column);
          tile_[row * kStride + column] = sums_.At(i, j, e);
        }
      }
    }
  }

  const EpilogueParameters& epilogue_;
  const Place place_;
  const WarpSums<Row>& sums_;
  Sum* const tile_;
};

}  // namespace gemmd
