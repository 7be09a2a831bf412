// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of GPU kernels, from accumulators to D, with the bits of ApplyEpilogue. Accumulators
// take one of three paths. Most products need only the product, or the product times alpha, in a
// common type: whole tiles of aligned rows then go from registers to memory (StorePairOf), and
// other tiles go through shared memory and StoreDirectly. For all other products,
// ApplyEpilogueToTile, which is not inlined, reads the tile from shared memory.
//
// A kernel takes the parameters as `const __grid_constant__`, so that their address is in the
// constant bank: without it, ApplyEpilogueToTile would get a copy in local memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/ptx/ptx.cuh"
#include "kernels/cuda/epilogue.h"
#include "kernels/cuda/epilogue_tile.h"

namespace gemmd {

// Two f32 as two f16 or bf16, the first in the low half; NaN becomes 0x7fff, as in Encode.
__device__ __forceinline__ uint32_t NarrowPairTo(ElementType type, float x0, float x1) {
  return type == ElementType::kF16 ? ptx::NarrowPair<ElementType::kF16>(x0, x1)
                                   : ptx::NarrowPair<ElementType::kBf16>(x0, x1);
}

// Two f32 as two elements of 8 bits: overflow becomes the largest finite number; NaN becomes 0x7f,
// or 0 in an integer type.
template <ElementType kType>
__device__ __forceinline__ uint16_t EncodeBytePair(float x0, float x1) {
  uint16_t pair;
  if constexpr (kType == ElementType::kE4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(x1), "f"(x0));
  } else if constexpr (kType == ElementType::kE5m2) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(x1), "f"(x0));
  } else {
    static_assert(kType == ElementType::kS8);
    int32_t y0;
    int32_t y1;
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(y0) : "f"(x0));
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(y1) : "f"(x1));
    pair = static_cast<uint16_t>((y0 & 0xff) | (y1 & 0xff) << 8);
  }
  return pair;
}

struct DeviceEncoder {
  template <ElementType kType, typename T>
  static __device__ __forceinline__ uint64_t Encode(T value) {
    constexpr bool kIsHalf = kType == ElementType::kF16 || kType == ElementType::kBf16;
    if constexpr (std::is_same_v<T, float> && kIsHalf) {
      return ptx::NarrowPair<kType>(value, 0);
    } else {
      return EncodeCode<kType>(value);
    }
  }
};

// Whether the kernel may call StoreDirectly. The answer is the same for all threads.
__device__ __forceinline__ bool CanStoreDirectly(const EpilogueParameters& parameters) {
  return parameters.stores_directly;
}

// Stores the words of (row, column) and (row, column + 1), if they are inside D.
template <typename Word>
__device__ __forceinline__ void StorePair(const EpilogueParameters& parameters, int64_t batch_index,
                                          int64_t row, int64_t column, Word word0, Word word1) {
  if (row >= parameters.m || column >= parameters.n) return;
  const bool is_row_major = parameters.d.order == Order::kRowMajor;
  std::byte* target = parameters.d.data + batch_index * parameters.d.batch_stride_bytes +
                      (is_row_major ? row : column) * parameters.d.line_stride_bytes +
                      (is_row_major ? column : row) * static_cast<int64_t>(sizeof(Word));
  const bool has_second = column + 1 < parameters.n;
  if (is_row_major && parameters.pairs_are_aligned && has_second) {
    struct alignas(2 * sizeof(Word)) Pair {
      Word words[2];
    };
    *reinterpret_cast<Pair*>(target) = {{word0, word1}};
    return;
  }
  *reinterpret_cast<Word*>(target) = word0;
  const int64_t step =
      is_row_major ? static_cast<int64_t>(sizeof(Word)) : parameters.d.line_stride_bytes;
  if (has_second) *reinterpret_cast<Word*>(target + step) = word1;
}

// Whether D has the whole tile at (row, column) and takes its pairs as StorePairOf writes them. The
// answer is the same for all threads.
__device__ __forceinline__ bool TakesWholePairs(const EpilogueParameters& parameters, int64_t row,
                                                int64_t column, int rows, int columns) {
  return parameters.stores_directly && parameters.pairs_are_aligned &&
         parameters.d.order == Order::kRowMajor && row + rows <= parameters.m &&
         column + columns <= parameters.n;
}

// The address of element (row, column) of a matrix of D, if D is row major.
template <ElementType kType>
__device__ __forceinline__ std::byte* ElementOfRow(const EpilogueParameters& parameters,
                                                   int64_t batch_index, int64_t row,
                                                   int64_t column) {
  return parameters.d.data + batch_index * parameters.d.batch_stride_bytes +
         row * parameters.d.line_stride_bytes + column * (BitsOf(kType) / 8);
}

// Stores the accumulators of two neighbouring elements as D's type, at an aligned address. A
// product that is NaN has one code, which the multiplication gives.
template <ElementType kType>
__device__ __forceinline__ void StorePairOf(const EpilogueParameters& parameters, std::byte* target,
                                            float x0, float x1) {
  x0 *= parameters.alpha_f32;  // 1 changes nothing.
  x1 *= parameters.alpha_f32;
  if constexpr (kType == ElementType::kF32) {
    *reinterpret_cast<float2*>(target) = {x0, x1};
  } else {
    *reinterpret_cast<uint32_t*>(target) = NarrowPairTo(kType, x0, x1);
  }
}
template <ElementType kType>
__device__ __forceinline__ void StorePairOf(const EpilogueParameters&, std::byte* target,
                                            int32_t x0, int32_t x1) {
  static_assert(kType == ElementType::kS32);
  *reinterpret_cast<int2*>(target) = {x0, x1};
}

// Stores the accumulators of (row, column) and (row, column + 1) of matrix `batch_index`, as far as
// they lie in D. `column` is even. Accumulator: float, double or int32_t.
template <typename Accumulator>
__device__ __forceinline__ void StoreDirectly(const EpilogueParameters& parameters,
                                              int64_t batch_index, int64_t row, int64_t column,
                                              Accumulator x0, Accumulator x1) {
  if constexpr (std::is_same_v<Accumulator, int32_t>) {
    StorePair(parameters, batch_index, row, column, x0, x1);
  } else if constexpr (std::is_same_v<Accumulator, double>) {
    if (parameters.is_plain) {
      StorePair(parameters, batch_index, row, column, x0, x1);
    } else {
      StorePair(parameters, batch_index, row, column, BitsWithOneNan(x0 * parameters.alpha),
                BitsWithOneNan(x1 * parameters.alpha));
    }
  } else {
    x0 *= parameters.alpha_f32;  // 1 changes nothing.
    x1 *= parameters.alpha_f32;
    if (parameters.d.type == ElementType::kF32) {
      StorePair(parameters, batch_index, row, column, BitsWithOneNan(x0), BitsWithOneNan(x1));
      return;
    }
    const uint32_t pair = NarrowPairTo(parameters.d.type, x0, x1);
    StorePair(parameters, batch_index, row, column, static_cast<uint16_t>(pair),
              static_cast<uint16_t>(pair >> 16));
  }
}

// Applies the epilogue to the tile of D whose first element is (first_row, first_column), both
// multiples of 8, as are tile_rows and tile_columns; it may hang over m and n. `tile` holds its
// accumulators row major, `tile_stride` of them from row to row, in shared memory; threads 0 to
// `threads` - 1 call it together, after a barrier. The call must be the last thing that a kernel
// does: values that live across it would go through local memory.
template <typename Accumulator>
__device__ __noinline__ void ApplyEpilogueToTile(const EpilogueParameters& parameters,
                                                 int64_t batch_index, int64_t first_row,
                                                 int64_t first_column, const Accumulator* tile,
                                                 int tile_rows, int tile_columns, int tile_stride,
                                                 int thread, int threads) {
  ApplyEpilogueToPart<DeviceEncoder>(parameters,
                                     StagedTile<Accumulator>{.data = tile,
                                                             .rows = tile_rows,
                                                             .columns = tile_columns,
                                                             .stride = tile_stride,
                                                             .batch_index = batch_index,
                                                             .first_row = first_row,
                                                             .first_column = first_column},
                                     thread, threads);
}

}  // namespace gemmd
