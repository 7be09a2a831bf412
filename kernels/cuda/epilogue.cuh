// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of kernels of GPUs, from accumulators to D: the bits of ApplyEpilogue.
//
// Two ways: StoreDirectly, inlined, from registers, for what most products ask (the product alone
// or times alpha, in a usual type); FinishTile, a call, from a tile in shared memory, for all else.
#pragma once

#include <cstdint>

#include "kernels/cuda/epilogue.h"

namespace gemmd {

// Whether the kernel may call StoreDirectly: the same for all threads.
__device__ __forceinline__ bool CanStoreDirectly(const EpilogueParameters& parameters) {
  return parameters.stores_directly;
}

// Stores the accumulators of (row, column) and (row, column + 1) of matrix `batch_index`, as far as
// they lie in D. `column` is even. Accumulator: float, double or int32_t.
template <typename Accumulator>
__device__ __forceinline__ void StoreDirectly(const EpilogueParameters& parameters,
                                              int64_t batch_index, int64_t row, int64_t column,
                                              Accumulator x0, Accumulator x1);

// Finishes the tile of D whose first element is (first_row, first_column), both multiples of 8, as
// are tile_rows and tile_columns; it may hang over m and n. `tile` holds its accumulators row
// major, `tile_stride` of them from row to row, in shared memory; threads 0 to `threads` - 1 call
// it together, after a barrier.
template <typename Accumulator>
__device__ __noinline__ void FinishTile(const EpilogueParameters& parameters, int64_t batch_index,
                                        int64_t first_row, int64_t first_column,
                                        const Accumulator* tile, int tile_rows, int tile_columns,
                                        int tile_stride, int thread, int threads);

}  // namespace gemmd
