// SPDX-License-Identifier: Apache-2.0
//
// The kernel of warpgroup rows: persistent blocks compute one tile of D after the other. One thread
// fills the ring of stages, tile after tile, without a pause in between. Each warpgroup multiplies
// its rows of the tile by all columns, directly from the stages, and passes its part of D to the
// copy engine (WarpgroupStore), which writes it while the warpgroup continues. The sums of an
// element get the instructions in ascending k.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/epilogue/split_sums.cuh"
#include "kernels/cuda/device/epilogue/warpgroup_elements.cuh"
#include "kernels/cuda/device/epilogue/warpgroup_store.cuh"
#include "kernels/cuda/device/mainloop/sum_factors.cuh"
#include "kernels/cuda/device/mainloop/tile_pipe.cuh"
#include "kernels/cuda/device/mainloop/warpgroup_metadata.cuh"
#include "kernels/cuda/device/ptx/wgmma_ptx.cuh"

namespace gemmd {

template <typename Row>
class WarpgroupBlock {
 public:
  __device__ WarpgroupBlock(const MmaParameters& parameters, std::byte* shared)
      : parameters_(parameters), shared_(ptx::SharedAddress(shared)), pipe_(parameters, shared_) {}

  __device__ void Run() {
    pipe_.Begin();
    const int thread = ptx::ThreadInBlock();
    if (thread >= kOf.threads()) {
      if constexpr (kMovesRegisters) ptx::LeaveRegisters<kRegistersToFill>();
      if (thread == kOf.threads()) Fill();
    } else {
      if constexpr (kMovesRegisters) ptx::TakeRegisters<kMaxRegisters>();
      Multiply(thread);
    }
  }

 private:
  static constexpr CudaRow kOf = kRow<Row>;
  static constexpr int kDown = InstructionsDown(kOf);
  static constexpr int kSteps = StepsOfTile(kOf);
  static constexpr int kABytes = TileLinesOf(kOf, mma::Operand::kA).bytes();
  static constexpr int kBBytes = TileLinesOf(kOf, mma::Operand::kB).bytes();
  static constexpr int kALineBytes = TileLinesOf(kOf, mma::Operand::kA).line_bytes;
  static constexpr int kBLineBytes = TileLinesOf(kOf, mma::Operand::kB).line_bytes;
  // From the rows of one instruction to those of the next.
  static constexpr int kInstructionBytes = kABytes / (kOf.tile.m / kOf.instruction.m);
  static constexpr TileLines kALines = TileLinesOf(kOf, mma::Operand::kA);
  static constexpr TileLines kBLines = TileLinesOf(kOf, mma::Operand::kB);
  static_assert(kALines.axis == LineAxis::kK || kALines.parts * kOf.instruction.m == kOf.tile.m);
  static constexpr int kBPartBytes = kBLines.axis == LineAxis::kK ? 16 : kBBytes / kBLines.parts;
  // From the elements of one instruction to the next ones along k.
  static constexpr int BytesOfStep(const TileLines& tile) {
    return tile.axis == LineAxis::kK ? tile.line_bytes / kSteps
                                     : kOf.instruction.k * tile.line_bytes;
  }
  using Metadata = WarpgroupMetadata<Row>;
  static_assert(!TakesTurns(kOf) || (WarpgroupsOf(kOf) == 2 && !Metadata::kIsSparse));
  static constexpr bool kMovesRegisters = MovesRegisters(kOf, ptx::kChip);
  static constexpr bool kTakesTurns = TakesTurns(kOf);
  static constexpr bool kPromotes = kOf.promotion_k > 0;
  using Store = std::conditional_t<IsNarrow(kOf), WarpgroupElements<Row>, WarpgroupStore<Row>>;
  using Sum = typename Store::Sum;
  using Cursor = typename TilePipe<Row>::Cursor;
  __device__ void Fill() const {
    Cursor at;
    int since_look = 0;  // Tiles along k.
    for (int tile = ptx::BlockInGrid(); tile < parameters_.tiles; tile += parameters_.blocks) {
      const bool looks_first = since_look >= kTilesBetweenLooks;
      if (looks_first) since_look = 0;
      since_look += parameters_.tiles_k;
      if (!pipe_.Fill(PlaceOfTile<Row>(parameters_, tile), at, looks_first)) return;
    }
  }

  __device__ void Multiply(int thread) const {
    const int warpgroup = thread / kThreadsOfWarpgroup;
    const Store store(parameters_, shared_, warpgroup, thread % kThreadsOfWarpgroup);
    const int part = kTakesTurns ? 0 : warpgroup;  // Its position in the tile, from the top.
    const uint32_t a = shared_ + part * kDown * kInstructionBytes;
    const Metadata metadata(shared_ + kABytes + kBBytes, part, thread % kThreadsOfWarpgroup);
    Cursor at;
    int tile = ptx::BlockInGrid();
    if constexpr (kTakesTurns) {
      at.Advance(warpgroup * parameters_.tiles_k);
      tile += warpgroup * parameters_.blocks;
    }
    for (; tile < parameters_.tiles; tile += parameters_.blocks * (kTakesTurns ? 2 : 1)) {
      const typename Store::Ahead ahead = store.Prepare(PlaceOfTile<Row>(parameters_, tile));
      Sum sums[kDown][Store::kSums];
      if constexpr (kTakesTurns) {
        if (tile >= parameters_.blocks) ptx::WaitForTurn(WarpgroupInBlock());
      }
      if constexpr (kOf.splits_f32) {
        if (!MultiplySplit(a, thread, PlaceOfTile<Row>(parameters_, tile), at, sums)) break;
      } else if constexpr (kOf.scales_sums) {
        const SumFactors<Row> factors(parameters_, shared_, part, thread % kThreadsOfWarpgroup);
        if (!MultiplyPromoted(a, metadata, factors, tile, at, sums)) break;
      } else {
        if (!MultiplyTile(a, metadata, tile, at, sums)) break;
      }
      store.Run(PlaceOfTile<Row>(parameters_, tile), ahead, sums);
      if constexpr (kTakesTurns)
        at.Advance(parameters_.tiles_k);  // Skips the other warpgroup's tile.
    }
    store.Finish();
  }

  // Read again each time; otherwise the value would occupy a register.
  static __device__ int WarpgroupInBlock() { return ptx::ThreadInBlock() / kThreadsOfWarpgroup; }

  // If warpgroups take turns, the other one may wait on the barriers of stages only after this one
  // has seen the last stage of its tile: the parity distinguishes two rounds of the ring, but not
  // three. Returns false if the ring has stopped; the sums are then meaningless.
  __device__ bool MultiplyTile(uint32_t a, const Metadata& metadata, int tile, Cursor& at,
                               Sum (&sums)[kDown][Store::kSums]) const {
    if constexpr (kPromotes) {
      return MultiplyPromoted(a, metadata, WithoutFactors(), tile, at, sums);
    } else {
      return MultiplyChained(a, metadata, tile, at, sums);
    }
  }

  // One chain of instructions for each sum.
  __device__ bool MultiplyChained(uint32_t a, const Metadata& metadata, int tile, Cursor& at,
                                  Sum (&sums)[kDown][Store::kSums]) const {
    typename Metadata::Words words[Metadata::kSets];
    int released = 0;
    bool has_stopped = false;
    static_assert(kTilesBetweenLooks % Metadata::kSets == 0);
    for (int k = 0; k < parameters_.tiles_k;) {
      has_stopped = HasStopped(at);
      if (has_stopped) break;
      const int next_look = min(k + kTilesBetweenLooks, parameters_.tiles_k);
      while (k < next_look) {
#pragma unroll
        for (int set = 0; set < Metadata::kSets; ++set) {
          if (set > 0 && k == next_look) break;
          MultiplyStage(a, metadata, at, words[set], k > 0, sums);
          // Then the products of the previous stage are done.
          ptx::WaitForProducts<1>();
          if (k > 0) {
            Metadata::Keep(words[Metadata::kSets - 1 - set]);
            pipe_.Release(released);
          }
          released = at.stage;
          at.Advance();
          ++k;
        }
      }
    }
    GiveTurn(parameters_, tile);
    ptx::WaitForProducts<0>();
#pragma unroll
    for (int set = 0; set < Metadata::kSets; ++set) Metadata::Keep(words[set]);
    pipe_.Release(released);
    return !has_stopped;
  }

  // Adds promoted sums as they are.
  struct WithoutFactors {
    struct Ahead {};
    __device__ Ahead Load(int, int) const { return {}; }
    __device__ __forceinline__ void Add(const Ahead&, int, const Sum (&sums)[Store::kSums],
                                        Sum (&totals)[Store::kSums]) const {
#pragma unroll
      for (int j = 0; j < Store::kSums; ++j) totals[j] += sums[j];
    }
  };

  // Promoted sums. While this warpgroup adds sums, the tensor core works for the other one.
  template <typename Factors>
  __device__ bool MultiplyPromoted(uint32_t a, const Metadata& metadata, const Factors& factors,
                                   int tile, Cursor& at, Sum (&totals)[kDown][Store::kSums]) const {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < Store::kSums; ++j) totals[i][j] = 0;
    }
    bool has_stopped = false;
    for (int k = 0; k < parameters_.tiles_k && !has_stopped;) {
      has_stopped = HasStopped(at);
      const int next_look = min(k + kTilesBetweenLooks, parameters_.tiles_k);
      for (; k < next_look && !has_stopped; ++k) {
        AddStage(a, metadata, factors, at, totals);
        pipe_.Release(at.stage);
        at.Advance();
      }
    }
    GiveTurn(parameters_, tile);
    return !has_stopped;
  }

  // Products of f32 (kernels/matrix/split_float.h). While the tensor core computes the cross
  // products of a stage, the main sums are added to the totals.
  __device__ bool MultiplySplit(uint32_t a, int thread, const Place& place, Cursor& at,
                                Sum (&totals)[kDown][Store::kSums]) const {
    static_assert(kDown == 1 && !kTakesTurns && kOf.promotion_k == kOf.tile.k);
    const typename Metadata::Words none = {};
    Sum cross[Store::kSums];
#pragma unroll
    for (int i = 0; i < Store::kSums; ++i) totals[0][i] = 0;
    int released = 0;
    bool has_stopped = false;
    for (int k = 0; k < parameters_.tiles_k;) {
      has_stopped = HasStopped(at);
      if (has_stopped) break;
      const int next_look = min(k + kTilesBetweenLooks, parameters_.tiles_k);
      for (; k < next_look; ++k) {
        pipe_.WaitFor(at);
        const uint32_t b = shared_ + at.offset() + 2 * kABytes;
        const uint64_t a_high = ptx::DescribeLines<kALineBytes>(a + at.offset());
        const uint64_t a_low = ptx::DescribeLines<kALineBytes>(a + at.offset() + kABytes);
        const uint64_t b_high = ptx::DescribeLines<kBLineBytes>(b);
        const uint64_t b_low = ptx::DescribeLines<kBLineBytes>(b + kBBytes);
        Sum sums[Store::kSums];
        ptx::BeginProducts();
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          MultiplyStep(sums, a_high, b_high, none, 0, step, step > 0);
        }
        ptx::CommitProducts();
        if (k > 0) {
          // Then the cross products of the previous stage are done.
          ptx::WaitForProducts<1>();
          pipe_.Release(released);
        }
        ptx::BeginProducts();
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          MultiplyStep(cross, a_low, b_high, none, 0, step, k > 0 || step > 0);
          MultiplyStep(cross, a_high, b_low, none, 0, step, true);
        }
        ptx::CommitProducts();
        ptx::WaitForProducts<1>();
#pragma unroll
        for (int i = 0; i < Store::kSums; ++i) totals[0][i] += sums[i];
        released = at.stage;
        at.Advance();
      }
    }
    ptx::WaitForProducts<0>();
    pipe_.Release(released);
    if (has_stopped) return false;
    FinishSplitSums(parameters_, place, thread, totals[0], cross);
    return true;
  }

  // Adds the products of a stage to the totals: sums each promotion_k elements of k from zero, for
  // the rows of one instruction after another.
  template <typename Factors>
  __device__ void AddStage(uint32_t a, const Metadata& metadata, const Factors& factors,
                           const Cursor& at, Sum (&totals)[kDown][Store::kSums]) const {
    constexpr int kStepsOfSum = kOf.promotion_k / kOf.instruction.k;
    static_assert(kSteps % kStepsOfSum == 0 && kOf.promotion_k % kOf.instruction.k == 0);
    pipe_.WaitFor(at);
    typename Metadata::Words words;
    metadata.Load(at.offset(), words);
    const uint64_t a_lines = ptx::DescribeLines<kALineBytes>(a + at.offset());
    const uint64_t b_lines = ptx::DescribeLines<kBLineBytes>(shared_ + at.offset() + kABytes);
#pragma unroll
    for (int first = 0; first < kSteps; first += kStepsOfSum) {
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        const typename Factors::Ahead ahead = factors.Load(at.stage, i);
        Sum sums[Store::kSums];
        ptx::BeginProducts();
#pragma unroll
        for (int step = first; step < first + kStepsOfSum; ++step) {
          MultiplyStep(sums, a_lines, b_lines, words, i, step, step > first);
        }
        ptx::CommitProducts();
        ptx::WaitForProducts<0>();
        factors.Add(ahead, at.stage, sums, totals[i]);
      }
    }
    Metadata::Keep(words);
  }

  // If warpgroups take turns, hands the tensor core over after the tile's last stage.
  static __device__ void GiveTurn(const MmaParameters& parameters, int tile) {
    if constexpr (kTakesTurns) {
      if (tile + parameters.blocks < parameters.tiles) ptx::GiveTurnTo(1 - WarpgroupInBlock());
    }
  }

  // The other warpgroup may have met the unfilled stage; the turn was passed after that.
  __device__ bool HasStopped(const Cursor& at) const {
    if (kTakesTurns && pipe_.HasStopped()) return true;
    pipe_.WaitFor(at);
    return pipe_.HasStopped();
  }

  // Issues the products of a stage, without waiting for them.
  __device__ void MultiplyStage(uint32_t a, const Metadata& metadata, const Cursor& at,
                                typename Metadata::Words& words, bool adds,
                                Sum (&sums)[kDown][Store::kSums]) const {
    pipe_.WaitFor(at);
    metadata.Load(at.offset(), words);
    const uint64_t a_lines = ptx::DescribeLines<kALineBytes>(a + at.offset());
    const uint64_t b_lines =
        ptx::DescribeLines<kBLineBytes, kBPartBytes>(shared_ + at.offset() + kABytes);
    ptx::BeginProducts();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        MultiplyStep(sums[i], a_lines, b_lines, words, i, step, adds || step > 0);
      }
    }
    ptx::CommitProducts();
  }

  // One instruction: rows `i` of the warpgroup's, step `step` of the stage.
  static __device__ __forceinline__ void MultiplyStep(Sum (&sums)[Store::kSums], uint64_t a_lines,
                                                      uint64_t b_lines,
                                                      const typename Metadata::Words& words, int i,
                                                      int step, bool adds) {
    const uint64_t a =
        a_lines + ptx::DescribedBytes(i * kInstructionBytes + step * BytesOfStep(kALines));
    const uint64_t b = b_lines + ptx::DescribedBytes(step * BytesOfStep(kBLines));
    if constexpr (Metadata::kIsSparse) {
      MultiplySparse(sums, a, b, words[i][step / Metadata::kStepsOfWord],
                     step % Metadata::kStepsOfWord, adds);
    } else {
      ptx::Wgmma<RowMnemonic<Row>>(sums, a, b, adds);
    }
  }

  // The selector is a part of the instruction; `selector` is known when the loop is unrolled.
  static __device__ void MultiplySparse(Sum (&sums)[Store::kSums], uint64_t a, uint64_t b,
                                        uint32_t metadata, int selector, bool adds) {
    if (selector == 0) {
      ptx::SparseWgmma<RowMnemonic<Row>, 0>(sums, a, b, metadata, adds);
    } else if constexpr (Metadata::kStepsOfWord > 1) {
      ptx::SparseWgmma<RowMnemonic<Row>, 1>(sums, a, b, metadata, adds);
    }
  }

  const MmaParameters& parameters_;
  const uint32_t shared_;
  const TilePipe<Row> pipe_;
};

template <typename Row>
__global__ void __launch_bounds__(ThreadsOfBlock(kRow<Row>, ptx::kChip),
                                  BlocksPerMultiprocessor(kRow<Row>, ptx::kChip))
    WarpgroupKernel(const __grid_constant__ MmaParameters parameters) {
  if constexpr (RunsOn(kRow<Row>, ptx::kChip)) {
    extern __shared__ __align__(1024) std::byte shared_memory[];
    WarpgroupBlock<Row>(parameters, shared_memory).Run();
  }
}

}  // namespace gemmd
