// SPDX-License-Identifier: Apache-2.0
//
// Converts a warpgroup's sums of split f32 to f32 sums, or marks the elements whose sums
// exact_sums.cu must compute (kernels/matrix/split_float.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mainloop/place.cuh"
#include "kernels/cuda/device/mma_parameters.h"

namespace gemmd {

// Marks are kept for 32 columns at a time, which four lanes share.
template <int kSums>
__device__ __forceinline__ void FinishSplitSums(const MmaParameters& parameters, const Place& place,
                                                int thread, float (&sums)[kSums],
                                                const float (&cross)[kSums]) {
  static_assert(kSums % 16 == 0);
  const SplitParameters& split = parameters.split;
  const int lane = thread % 32;
  const int row = static_cast<int>(place.row) + thread / 32 * 16 + lane / 4;
  const int column = static_cast<int>(place.column) + lane % 4 * 2;
  const MagnitudeRange* const of_rows = split.a_ranges + place.batch * split.a_ranges_of_matrix;
  const MagnitudeRange* const of_columns =
      split.b_ranges + place.batch * split.b_ranges_of_matrix + column;
  const SplitLine rows[2] = {SplitLineOf(of_rows[row]), SplitLineOf(of_rows[row + 8])};
#pragma unroll
  for (int first = 0; first < kSums; first += 16) {
    uint32_t marks[2] = {0, 0};
#pragma unroll
    for (int i = first; i < first + 16; i += 4) {
      // Two neighbouring columns, aligned to their size.
      const uint4 both = *reinterpret_cast<const uint4*>(of_columns + i * 2);
      const SplitLine columns[2] = {SplitLineOf({both.x, both.y}), SplitLineOf({both.z, both.w})};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float joined = JoinSplitSums(sums[i + j], cross[i + j]);
        const bool is_exact = NeedsExactSum(rows[j / 2], columns[j % 2], joined, split.k);
        const int offset = i % 16 * 2 + lane % 4 * 2 + j % 2;
        if (is_exact) marks[j / 2] |= uint32_t{1} << offset;
        sums[i + j] = ScaleBack(joined, rows[j / 2], columns[j % 2]);
      }
    }
    if ((marks[0] | marks[1]) == 0) continue;
    const int64_t first_column = place.column + first * 2;
    const int64_t left = parameters.epilogue.n - first_column;
    const uint32_t inside = left >= 32 ? ~0U : left <= 0 ? 0 : (1U << left) - 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if ((marks[i] & inside) == 0 || row + i * 8 >= parameters.epilogue.m) continue;
      const int64_t line = place.batch * parameters.epilogue.m + row + i * 8;
      atomicOr(split.marks + line * split.words_of_row + first_column / 32, marks[i] & inside);
      *split.any = 1;
    }
  }
}

}  // namespace gemmd
