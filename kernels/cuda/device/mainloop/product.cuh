// SPDX-License-Identifier: Apache-2.0
//
// The kernel of all rows except warpgroup rows: a multistage product on tensor cores. Tiles of A
// and B are copied to shared memory several stages ahead, by the copy engine (from sm_90 on) or by
// cp.async. Fragments are loaded from there by ldmatrix, for f64 and m8n8k4 by 8-byte loads, and
// for wmma by its own loads; ahead of the instructions if registers suffice. Each accumulator
// starts from zero and gets the instructions in ascending k.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/device/epilogue/block_epilogue.cuh"
#include "kernels/cuda/device/mainloop/fragments_ahead.cuh"
#include "kernels/cuda/device/mainloop/plain_loop.cuh"
#include "kernels/cuda/device/mainloop/tile_pipe.cuh"

namespace gemmd {

template <typename Row>
class MmaBlock {
 public:
  __device__ MmaBlock(const MmaParameters& parameters, std::byte* shared)
      : parameters_(parameters), shared_(shared) {}

  __device__ void Run() {
    if constexpr (HasRingOn(kOf, ptx::kChip)) {
      RunAhead();
    } else {
      sums_.Clear();
      PlainLoop<Row>(parameters_, ptx::SharedAddress(shared_))
          .Run(FindPlace<Row>(parameters_), sums_);
    }
    BlockEpilogue<Row>(parameters_.epilogue, FindPlace<Row>(parameters_), sums_, shared_).Run();
  }

 private:
  static constexpr CudaRow kOf = kRow<Row>;
  static constexpr bool kMovesRegisters = MovesRegisters(kOf, ptx::kChip);
  using Fragments = std::conditional_t<HoldsTile(kOf), FragmentsOfTile<Row>, FragmentsAhead<Row>>;

  // The warps of the row multiply. The first thread beyond them fills the pipe; then all threads
  // beyond them exit.
  __device__ void RunAhead() {
    const TilePipe<Row> pipe(parameters_, ptx::SharedAddress(shared_));
    pipe.Begin();
    const Place place = FindPlace<Row>(parameters_);
    if (place.thread >= kOf.threads()) {
      if constexpr (kMovesRegisters) ptx::LeaveRegisters<kRegistersToFill>();
      if (place.thread == kOf.threads()) {
        typename TilePipe<Row>::Cursor end;
        pipe.Fill(place, end, /*looks_first=*/false);
        pipe.WaitForReleases(end);
      }
      ptx::Exit();
    }
    if constexpr (kMovesRegisters) ptx::TakeRegisters<kMaxRegisters>();
    sums_.Clear();
    Fragments fragments(ptx::SharedAddress(shared_), place);
    typename TilePipe<Row>::Cursor at;
    int released = 0;
    bool is_full = false;
    int next_look = min(kTilesBetweenLooks, parameters_.tiles_k);
    for (int tile = 0;; ++tile) {
      if (tile == next_look) {
        if (tile == parameters_.tiles_k || HasStopped(pipe, at, released)) break;
        next_look = min(tile + kTilesBetweenLooks, parameters_.tiles_k);
      }
      if (tile > 0) pipe.Release(released);
      if (!is_full) pipe.WaitFor(at);
      typename TilePipe<Row>::Cursor next = at;
      next.Advance();
      is_full = pipe.IsFull(next);  // Known by the time that this tile's instructions are issued.
      if constexpr (HoldsTile(kOf)) {
        fragments.Run(at.offset(), sums_);
      } else {
        RunTile(std::make_integer_sequence<int, Fragments::kParts>(), at.offset(), fragments);
      }
      released = at.stage;
      at = next;
    }
    fragments.Finish(sums_);
  }

  // Waits for the stage and checks whether the ring has stopped. If so, releases the previous
  // stage, the last one to release.
  __device__ static bool HasStopped(const TilePipe<Row>& pipe,
                                    const typename TilePipe<Row>::Cursor& at, int before) {
    pipe.WaitFor(at);
    if (!pipe.HasStopped()) return false;
    pipe.Release(before);
    return true;
  }

  // Runs the instructions of the previous tile's last part, and of all parts of this tile except
  // its last.
  template <int... kAt>
  __device__ void RunTile(std::integer_sequence<int, kAt...>, int offset, Fragments& fragments) {
    (fragments.template Run<kAt>(offset, sums_), ...);
  }

  const MmaParameters& parameters_;
  std::byte* const shared_;
  WarpSums<Row> sums_;
};

template <typename Row>
__global__ void __launch_bounds__(ThreadsOfBlock(kRow<Row>, ptx::kChip),
                                  BlocksPerMultiprocessor(kRow<Row>, ptx::kChip))
    MmaKernel(const __grid_constant__ MmaParameters parameters) {
  if constexpr (RunsOn(kRow<Row>, ptx::kChip)) {
    extern __shared__ __align__(1024) std::byte shared_memory[];
    MmaBlock<Row>(parameters, shared_memory).Run();
  }
}

}  // namespace gemmd
