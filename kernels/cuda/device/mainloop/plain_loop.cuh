// SPDX-License-Identifier: Apache-2.0
//
// The loop along k of rows that do not load ahead: threads copy the tiles by cp.async, and
// fragments are loaded just before the instructions that take them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mainloop/abort.cuh"
#include "kernels/cuda/device/mainloop/place.cuh"
#include "kernels/cuda/device/mainloop/tile_copy.cuh"
#include "kernels/cuda/device/mainloop/warp_sums.cuh"
#include "kernels/mma/chip.h"

namespace gemmd {

template <typename Row>
class PlainLoop {
 public:
  // `shared` is where the stages begin.
  __device__ PlainLoop(const MmaParameters& parameters, uint32_t shared)
      : parameters_(parameters), shared_(shared) {}

  __device__ void Run(const Place& place, WarpSums<Row>& sums) const {
    const Loaders loaders = {{shared_, place.warp_row, place.lane},
                             {shared_ + kABytes, place.warp_column, place.lane}};
    MetadataWords<Row> metadata(MetadataSource(place), parameters_.metadata_steps);
    Copies copies = {{parameters_.a, place.batch, place.row, shared_, place.thread},
                     {parameters_.b, place.batch, place.column, shared_ + kABytes, place.thread}};
    for (int stage = 0; stage < kOf.stages - 1; ++stage) {
      if (stage < parameters_.tiles_k) copies.Copy(stage * kStageBytes);
      copies.Advance();
      ptx::CommitCopies();
    }
    int stage = 0;
    for (int tile = 0; tile < parameters_.tiles_k; ++tile) {
      if (IsLook(tile) && __syncthreads_or(place.thread == 0 && IsAborted(parameters_.abort))) {
        break;
      }
      ptx::WaitForCopies<kOf.stages - 2>();
      __syncthreads();
      if (tile + kOf.stages - 1 < parameters_.tiles_k) {
        copies.Copy(Previous(stage) * kStageBytes);
      }
      copies.Advance();
      ptx::CommitCopies();
      const bool is_whole = (tile + 1) * kSteps <= parameters_.steps;
      if (!CountsEveryStep(kOf) || is_whole) {
#pragma unroll(kUnroll)
        for (int step = 0; step < kSteps; ++step) {
          RunStep(step, stage, loaders, metadata, sums);
          metadata.Replace(step, tile + 1 < parameters_.tiles_k);
        }
      } else {
#pragma unroll 1
        for (int step = 0; tile * kSteps + step < parameters_.steps; ++step) {
          RunStep(step, stage, loaders, metadata, sums);
        }
      }
      if constexpr (kOf.promotion_k > 0) {
        static_assert(kOf.promotion_k % kOf.tile.k == 0);
        if ((tile + 1) % (kOf.promotion_k / kOf.tile.k) == 0) sums.Promote();
      }
      stage = Next(stage);
    }
    if constexpr (kOf.promotion_k > 0) sums.Finish();
    ptx::WaitForCopies<0>();
  }

 private:
  static constexpr CudaRow kOf = kRow<Row>;
  static constexpr mma::Instruction kInstruction = kOf.instruction;
  static constexpr int kABytes = TileLinesOf(kOf, mma::Operand::kA).bytes();
  static constexpr int kStageBytes = StageBytes(kOf);
  static constexpr int kSteps = StepsOfTile(kOf);
  static constexpr int kParts = PartsOfB(kOf);
  // Steps that ptxas expands are long enough without unrolling. Sparse steps are unrolled anyway,
  // because the step determines the registers of its metadata.
  static constexpr int kUnroll =
      kInstruction.is_sparse() || mma::SupportOn(kInstruction, ptx::kChip) == mma::Support::kNative
          ? kSteps
          : 1;

  struct Copies {
    TileCopy<Row, mma::Operand::kA> a;
    TileCopy<Row, mma::Operand::kB> b;

    __device__ void Copy(int offset) const {
      a.Copy(offset);
      b.Copy(offset);
    }
    __device__ void Advance() {
      a.Advance();
      b.Advance();
    }
  };
  struct Loaders {
    FragmentLoader<Row, mma::Operand::kA> a;
    FragmentLoader<Row, mma::Operand::kB> b;
  };

  __device__ static int Next(int stage) { return stage + 1 == kOf.stages ? 0 : stage + 1; }
  __device__ static int Previous(int stage) { return stage == 0 ? kOf.stages - 1 : stage - 1; }

  __device__ void RunStep(int step, int stage, const Loaders& loaders,
                          const MetadataWords<Row>& metadata, WarpSums<Row>& sums) const {
    Fragments<Row, mma::Operand::kA, InstructionsDown(kOf)> a;
    loaders.a.Load(stage * kStageBytes, step, 0, a);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Fragments<Row, mma::Operand::kB, InstructionsAcross(kOf) / kParts> b;
      loaders.b.Load(stage * kStageBytes, step, part, b);
      sums.Add(a, b, part, metadata.OfStep(step));
    }
  }

  // This lane's metadata for the warp's first rows.
  __device__ const uint32_t* MetadataSource(const Place& place) const {
    if constexpr (!kInstruction.is_sparse()) return nullptr;
    const int64_t rows = (place.row + place.warp_row) / kInstruction.m;
    return parameters_.metadata + place.batch * parameters_.metadata_batch_stride_words +
           rows * parameters_.metadata_steps * 32 + place.lane;
  }

  const MmaParameters& parameters_;
  uint32_t shared_;
};

}  // namespace gemmd
