// SPDX-License-Identifier: Apache-2.0
//
// Adds the promoted sums of a thread to its totals, multiplied by the factors of their blocks
// (BlockScaling::kPromotions), which the ring of stages brings with the operands (TilePipe).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mainloop/row_constants.cuh"
#include "kernels/cuda/device/mma_parameters.h"
#include "kernels/cuda/device/ptx/ptx.cuh"

namespace gemmd {

template <typename Row>
class SumFactors {
 public:
  static constexpr CudaRow kOf = kRow<Row>;
  static constexpr int kSums = kWarpgroupSums<Row>;
  static_assert(kOf.tile.k == kOf.promotion_k, "a stage has one promotion");

  // `shared` is the block's memory, `part` the warpgroup's position in the tile, from the top, and
  // `thread` a number within the warpgroup.
  __device__ SumFactors(const MmaParameters& parameters, uint32_t shared, int part, int thread)
      : are_columns_shared_(parameters.factors.are_columns_shared) {
    const mma::Position first = PositionInFragment<Row, mma::Operand::kD>(thread, 0);
    const int row = part * InstructionsDown(kOf) * kOf.instruction.m + first.row;
    rows_ = shared + FactorsOffset(kOf) + row * kFloatBytes;
    columns_ = shared + FactorsOffset(kOf) + (kOf.tile.m + first.column) * kFloatBytes;
  }

  // The factors that a thread loads for the sums of one instruction: those of its two rows and, if
  // columns share them, of groups of columns.
  struct Ahead {
    float rows[2];
    float columns[GroupsOfFactors(kOf)];
  };
  // `i` counts instructions from the top.
  __device__ __forceinline__ Ahead Load(int stage, int i) const {
    Ahead ahead;
    const int first = stage * FactorBytes(kOf) + i * kOf.instruction.m * kFloatBytes;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      ahead.rows[row] = LoadFactor(rows_ + first + row * kRowsApart * kFloatBytes);
    }
    if (!are_columns_shared_) return ahead;
#pragma unroll
    for (int group = 0; group < GroupsOfFactors(kOf); ++group) {
      ahead.columns[group] = LoadFactor(columns_ + stage * FactorBytes(kOf) +
                                        group * ColumnsOfFactor(kOf) * kFloatBytes);
    }
    return ahead;
  }

  __device__ __forceinline__ void Add(const Ahead& ahead, int stage, const float (&sums)[kSums],
                                      float (&totals)[kSums]) const {
    if (are_columns_shared_) {
#pragma unroll
      for (int group = 0; group < GroupsOfFactors(kOf); ++group) {
        const float factors[2] = {ahead.rows[0] * ahead.columns[group],
                                  ahead.rows[1] * ahead.columns[group]};
#pragma unroll
        for (int j = group * kSumsOfGroup; j < (group + 1) * kSumsOfGroup; ++j) {
          totals[j] = __fmaf_rn(sums[j], factors[j / 2 % 2], totals[j]);
        }
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < kSums; j += 4) {
      const uint64_t both =
          ptx::LoadShared64(columns_ + stage * FactorBytes(kOf) + j * 2 * kFloatBytes);
      const float columns[2] = {__uint_as_float(static_cast<uint32_t>(both)),
                                __uint_as_float(static_cast<uint32_t>(both >> 32))};
#pragma unroll
      for (int i = j; i < j + 4; ++i) {
        totals[i] = __fmaf_rn(sums[i], ahead.rows[i / 2 % 2] * columns[i % 2], totals[i]);
      }
    }
  }

 private:
  static constexpr int kFloatBytes = sizeof(float);
  // A thread's sums are pairs of neighbouring columns: in one row and in the row kRowsApart below,
  // then the same 8 columns on.
  static constexpr int kRowsApart = 8;
  static constexpr int kSumsOfGroup = ColumnsOfFactor(kOf) / 2;

  static __device__ __forceinline__ float LoadFactor(uint32_t at) {
    return __uint_as_float(ptx::LoadShared32(at));
  }

  uint32_t rows_;  // In the first stage's factors.
  uint32_t columns_;
  const bool are_columns_shared_;
};

}  // namespace gemmd
