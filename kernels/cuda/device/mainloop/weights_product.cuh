// SPDX-License-Identifier: Apache-2.0
//
// The kernel of narrow warpgroup rows whose A are quantized weights (kernels/cuda/weights.h). One
// thread fills a ring of stages; four warps dequantize A in registers and multiply it by B with
// mma.sync.m16n8k16, whose sums are those of the row's own instruction (GiveSameBits). The sums of
// an element get the instructions in ascending k.
//
// wgmma with A in registers gave the same bits at 0.94 of the rate: a warp dequantized nothing
// while its products were under way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/epilogue/warpgroup_elements.cuh"
#include "kernels/cuda/device/mainloop/abort.cuh"
#include "kernels/cuda/device/mainloop/place.cuh"
#include "kernels/cuda/device/operands/weights.h"
#include "kernels/cuda/device/ptx/copy_engine_ptx.cuh"
#include "kernels/cuda/device/ptx/weights_ptx.cuh"

namespace gemmd {

// The codes of one instruction, a thread's fragment, as elements of kTo times the factors of its
// two lines.
template <ElementType kTo>
struct WeightCodec {
  // The s4 in kTo, exactly: a code is the low bits of a number that has no others (128 in bf16,
  // 1024 in f16); the codes have their sign bit inverted.
  static __device__ __forceinline__ uint32_t PairOf(uint32_t codes, int pair) {
    constexpr bool kIsHalf = kTo == ElementType::kF16;
    constexpr uint32_t kBase = kIsHalf ? 0x6400'6400 : 0x4300'4300;
    constexpr uint32_t kOffset = kIsHalf ? 0x6408'6408 : 0x4308'4308;
    return ptx::SubtractPairs<kTo>(ptx::MergeBits(codes >> 4 * pair, 0x000f'000f, kBase), kOffset);
  }

  // Whether kTo holds the factor: its products with elements are then exact in f32, so that one
  // multiplication in kTo rounds as f32 and kTo one after the other do.
  static __device__ bool IsShort(float factor) {
    if constexpr (kTo == ElementType::kBf16) {
      return (__float_as_uint(factor) & 0xffff) == 0;
    } else {
      return factor == ptx::WidenHalf(ptx::HalfOf(factor));
    }
  }

  static __device__ __forceinline__ void Run(uint32_t codes, const float (&factors)[2],
                                             uint32_t (&a)[4]) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const float2 values = ptx::WidenPair<kTo>(PairOf(codes, pair));
      a[pair] = ptx::NarrowPair<kTo>(values.x * factors[pair % 2], values.y * factors[pair % 2]);
    }
  }
  // The same with short factors, as pairs of kTo.
  static __device__ __forceinline__ void RunShort(uint32_t codes, const uint32_t (&factors)[2],
                                                  uint32_t (&a)[4]) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      a[pair] = ptx::MultiplyPairs<kTo>(PairOf(codes, pair), factors[pair % 2]);
    }
  }
};

template <typename Row>
class WeightsBlock {
 public:
  static constexpr CudaRow kOf = kRow<Row>;
  static constexpr int kThreads = kWeightThreads + 32;
  static constexpr int kBBytes = TileLinesOf(kOf, mma::Operand::kB).bytes();
  static constexpr int kChunkBytes = kWeightChunkBytes;
  static constexpr int kStageBytes =
      (kWeightChunks * (kBBytes + kChunkBytes) + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
  static constexpr int kBlocks = BlocksOfWeights(kOf);
  static constexpr int kReservedBytes = 1024;  // The system takes these from each block.
  static constexpr int kStages =
      ((mma::SharedBytesOf(mma::Chip::kSm90) + kReservedBytes) / kBlocks - kReservedBytes - 256) /
      kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kStages * kBarrierBytes + kStopBytes;
  static_assert(kStages >= 3 && kOf.tile.m == kWeightLines && kOf.tile.k == kWeightDepth &&
                kOf.instruction.k == 16);

  __device__ WeightsBlock(const WeightsParameters& parameters, std::byte* shared)
      : parameters_(parameters), shared_(ptx::SharedAddress(shared)) {}

  __device__ void Run() const {
    const int thread = ptx::ThreadInBlock();
    if (thread == 0) {
      ptx::FetchMap(&parameters_.product.b_map);
      for (int stage = 0; stage < kStages; ++stage) {
        ptx::InitBarrier(Full(stage), 1);
        ptx::InitBarrier(Empty(stage), kWeightThreads / 32);
      }
      ptx::StoreShared32(Stopped(), 0);
      ptx::ShowBarriers();
    }
    __syncthreads();
    if (thread < kWeightThreads) {
      Multiply(thread);
    } else if (thread == kWeightThreads) {
      Fill();
    }
  }

 private:
  static constexpr int kSteps = kWeightDepth / 16;  // Instructions of a chunk.
  static constexpr int kLook = kTilesBetweenLooks / kWeightChunks;
  using Codec = WeightCodec<kOf.instruction.a>;
  using Store = WarpgroupElements<Row>;
  static constexpr int kLineBytes = 128;  // Of B.

  struct Cursor {
    int stage = 0;
    int parity = 0;
    int filled = 0;  // Stages before this one.

    __device__ void Advance() {
      const bool is_last = stage == kStages - 1;
      stage = is_last ? 0 : stage + 1;
      parity ^= is_last ? 1 : 0;
      ++filled;
    }
    // Whether the thread that fills looks for an abort before it fills this stage.
    __device__ bool IsLook() const { return filled > 0 && filled % kLook == 0; }
  };

  __device__ uint32_t Full(int stage) const {
    return shared_ + kStages * kStageBytes + stage * kBarrierBytes;
  }
  __device__ uint32_t Empty(int stage) const { return Full(stage) + kBarrierBytes / 2; }
  __device__ uint32_t Stopped() const { return Full(kStages); }

  __device__ void Fill() const {
    const MmaParameters& product = parameters_.product;
    Cursor at;
    for (int tile = ptx::BlockInGrid(); tile < product.tiles; tile += product.blocks) {
      const Place place = PlaceOfTile<Row>(product, tile);
      const std::byte* weights =
          parameters_.weights + place.row / kWeightLines * parameters_.bytes_of_tile;
      const int column = static_cast<int>(place.column);
      for (int step = 0; step < parameters_.stages; ++step, at.Advance()) {
        // Every stage is empty at first.
        ptx::WaitForPhase(Empty(at.stage), at.parity ^ 1);
        if (at.IsLook() && IsAborted(product.abort)) return Stop(at);
        const uint32_t barrier = Full(at.stage);
        const uint32_t stage = shared_ + at.stage * kStageBytes;
        ptx::ArriveAndAnnounce(barrier, kWeightChunks * (kBBytes + kChunkBytes));
        ptx::CopyBytesAsync(stage + kWeightChunks * kBBytes, weights, kWeightChunks * kChunkBytes,
                            barrier);
        weights += kWeightChunks * kChunkBytes;
#pragma unroll
        for (int chunk = 0; chunk < kWeightChunks; ++chunk) {
          constexpr int kWordsOfLine = kLineBytes / 4;
          ptx::CopyTileAsync(stage + chunk * kBBytes, &product.b_map,
                             (step * kWeightChunks + chunk) * kWordsOfLine, column, 0, barrier);
        }
      }
    }
  }

  // The stage stays unfilled. Bytes of those before must have arrived when the block exits.
  __device__ void Stop(Cursor at) const {
    ptx::StoreShared32(Stopped(), 1);
    ptx::Arrive(Full(at.stage));
    at.Advance();
    for (int stage = 1; stage < kStages; ++stage, at.Advance()) {
      ptx::WaitForPhase(Full(at.stage), at.parity ^ 1);
    }
  }

  __device__ void Multiply(int thread) const {
    const MmaParameters& product = parameters_.product;
    const Store store(product, shared_, 0, thread);
    Cursor at;
    for (int tile = ptx::BlockInGrid(); tile < product.tiles; tile += product.blocks) {
      const Place place = PlaceOfTile<Row>(product, tile);
      const typename Store::Ahead ahead = store.Prepare(place);
      float sums[1][Store::kSums] = {};
      bool has_stopped = false;
      for (int step = 0; step < parameters_.stages;) {
        has_stopped = HasStopped(at);
        if (has_stopped) break;
        const int next_look = min(step + kLook - at.filled % kLook, parameters_.stages);
        for (; step < next_look; ++step) {
          ptx::WaitForPhase(Full(at.stage), at.parity);
          const uint32_t stage = shared_ + at.stage * kStageBytes;
#pragma unroll
          for (int chunk = 0; chunk < kWeightChunks; ++chunk) {
            MultiplyChunk(stage + chunk * kBBytes,
                          stage + kWeightChunks * kBBytes + chunk * kChunkBytes, thread, sums[0]);
          }
          Release(at.stage);
          at.Advance();
        }
      }
      if (has_stopped) break;
      store.Run(place, ahead, sums);
    }
    store.Finish();
  }

  // All warps wait for the stage that is left unfilled.
  __device__ bool HasStopped(const Cursor& at) const {
    if (!at.IsLook()) return false;
    ptx::WaitForPhase(Full(at.stage), at.parity);
    return ptx::LoadShared32(Stopped()) != 0;
  }

  // `b_tile` and `weights` are the chunk's in shared memory.
  static __device__ __forceinline__ void MultiplyChunk(uint32_t b_tile, uint32_t weights,
                                                       int thread, float (&sums)[Store::kSums]) {
    uint32_t a[kSteps][4];
    Dequantize(weights, thread, a);
    // The lines of B whose 16 bytes this lane names for LoadMatrices: of two matrices along k, and
    // of two of eight columns.
    const int lane = thread % 32;
    const uint32_t line = b_tile + (lane / 16 * 8 + lane % 8) * kLineBytes;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int bytes = (2 * i + lane / 8 % 2 ^ lane % 8) * 16;
#pragma unroll
      for (int j = 0; j < kOf.tile.n / 16; ++j) {
        uint32_t b[4];
        ptx::LoadMatrices(b, line + j * 16 * kLineBytes + bytes);
        ptx::Multiply16x8x16<kOf.instruction.a>(sums + 8 * j, a[i], b[0], b[1]);
        ptx::Multiply16x8x16<kOf.instruction.a>(sums + 8 * j + 4, a[i], b[2], b[3]);
      }
    }
  }

  // All lanes have loaded what they multiply.
  __device__ void Release(int stage) const {
    __syncwarp();
    if (ptx::IsElected()) ptx::Arrive(Empty(stage));
  }

  static __device__ __forceinline__ void Dequantize(uint32_t chunk, int thread,
                                                    uint32_t (&a)[kSteps][4]) {
    const uint32_t line = chunk + (thread / 32 * 16 + thread % 32 / 4) * 4;
    const float factors[2] = {__uint_as_float(ptx::LoadShared32(line)),
                              __uint_as_float(ptx::LoadShared32(line + 8 * 4))};
    uint32_t codes[kSteps];
    ptx::LoadShared128(chunk + kWeightFactorBytes + thread * 16, codes);
    if (__all_sync(0xffff'ffff, Codec::IsShort(factors[0]) && Codec::IsShort(factors[1]))) {
      const uint32_t pairs[2] = {ptx::NarrowPair<kOf.instruction.a>(factors[0], factors[0]),
                                 ptx::NarrowPair<kOf.instruction.a>(factors[1], factors[1])};
#pragma unroll
      for (int i = 0; i < kSteps; ++i) Codec::RunShort(codes[i], pairs, a[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) Codec::Run(codes[i], factors, a[i]);
    }
  }

  const WeightsParameters& parameters_;
  const uint32_t shared_;
};

template <typename Row>
__global__ void __launch_bounds__(WeightsBlock<Row>::kThreads, WeightsBlock<Row>::kBlocks)
    MultiplyWeights(const __grid_constant__ WeightsParameters parameters) {
  if constexpr (RunsOn(kRow<Row>, ptx::kChip)) {
    extern __shared__ __align__(1024) std::byte shared_memory[];
    WeightsBlock<Row>(parameters, shared_memory).Run();
  }
}

}  // namespace gemmd
