// SPDX-License-Identifier: Apache-2.0
//
// The kernel of every row: a multistage product on tensor cores.
//
// Tiles of A and B come into shared memory several stages ahead, by the copy engine (from sm_90 on)
// or by cp.async, and from there into fragments by ldmatrix (f64 and m8n8k4: by loads of 8 bytes;
// wmma: by its own), where registers are left one step of k ahead of the instructions. Each
// accumulator gets the instructions in ascending k, from zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/mma_parameters.h"
#include "kernels/cuda/tile_copy.cuh"
#include "kernels/cuda/warp_sums.cuh"
#include "kernels/mma/support.h"

namespace gemmd {

// What a thread works on. Neighbours in the grid share lines of A and B, which then stay in L2.
struct Place {
  int64_t row;  // Of the block's tile in D.
  int64_t column;
  int64_t batch;
  int thread;
  int lane;
  int warp_row;  // Of the warp's part in the tile.
  int warp_column;
};

template <size_t kIndex>
__device__ Place FindPlace(const MmaParameters& parameters) {
  constexpr CudaRow kOf = kRow<kIndex>;
  constexpr int kGroup = 8;  // Tiles above each other that follow each other.
  const int block = ptx::BlockInGrid();
  const int first = block / (kGroup * parameters.tiles_n) * kGroup;
  const int rows = min(parameters.tiles_m - first, kGroup);
  const int inside = block % (kGroup * parameters.tiles_n);
  const int thread = ptx::ThreadInBlock();
  const int warp = thread / 32;
  return {.row = int64_t{first + inside % rows} * kOf.tile.m,
          .column = int64_t{inside / rows} * kOf.tile.n,
          .batch = blockIdx.z + parameters.first_batch,
          .thread = thread,
          .lane = thread % 32,
          .warp_row = warp % kOf.warps_m * (kOf.tile.m / kOf.warps_m),
          .warp_column = warp / kOf.warps_m * (kOf.tile.n / kOf.warps_n)};
}

template <size_t kIndex>
class MmaBlock {
 public:
  __device__ MmaBlock(const MmaParameters& parameters, std::byte* shared)
      : parameters_(parameters), shared_(shared) {}

  __device__ void Run() {
    const uint32_t shared = ptx::SharedAddress(shared_);
    const Place place = FindPlace<kIndex>(parameters_);
    const Loaders loaders = {{shared, place.warp_row, place.lane},
                             {shared + kABytes, place.warp_column, place.lane}};
    MetadataWords<kIndex> metadata(MetadataSource(place), parameters_.metadata_steps);
    sums_.Clear();
    if constexpr (LoadsAheadOn(kOf, ptx::kChip)) {
      RunAhead(place, loaders, metadata);
    } else {
      RunPlainly(place, loaders, metadata);
    }
    Finish();
  }

 private:
  static constexpr CudaRow kOf = kRow<kIndex>;
  static constexpr mma::Instruction kInstruction = kOf.instruction;
  static constexpr int kABytes = TileLinesOf(kOf, mma::Operand::kA).bytes();
  static constexpr int kStageBytes = StageBytes(kOf);
  static constexpr int kSteps = StepsOfTile(kOf);
  static constexpr int kParts = PartsOfB(kOf);
  static constexpr int kTileStride = AccumulatorStride(kOf);

  struct Copies {
    TileCopy<kIndex, mma::Operand::kA> a;
    TileCopy<kIndex, mma::Operand::kB> b;

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
    FragmentLoader<kIndex, mma::Operand::kA> a;
    FragmentLoader<kIndex, mma::Operand::kB> b;
  };

  // Where in the stages a tile of k is. Each round through them turns the parity of the barriers.
  struct Turn {
    int stage;
    int parity;

    __device__ Turn Next() const {
      return stage + 1 == kOf.stages ? Turn{0, parity ^ 1} : Turn{stage + 1, parity};
    }
  };

  // What the tiles of RunAhead share. `full` says that a stage's tiles are there, `empty` that
  // every warp has read them; so warps need not keep in step.
  struct Ahead {
    const Loaders& loaders;
    MetadataWords<kIndex>& metadata;
    uint32_t stages;  // Shared memory.
    int row;
    int column;
    int a_matrix;
    int b_matrix;
    bool copies;  // This thread tells the copy engine what to do.
    Fragments<kIndex, mma::Operand::kA> a[2];
    Fragments<kIndex, mma::Operand::kB> b[2];

    __device__ uint32_t full(int stage) const {
      return stages + kOf.stages * kStageBytes + stage * kBarrierBytes;
    }
    __device__ uint32_t empty(int stage) const { return full(stage) + kBarrierBytes / 2; }
  };

  // The copy engine brings tiles, as many ahead as there are other stages; fragments are loaded one
  // part of a step ahead of the instructions that take them.
  __device__ void RunAhead(const Place& place, const Loaders& loaders,
                           MetadataWords<kIndex>& metadata) {
    Ahead ahead = {.loaders = loaders,
                   .metadata = metadata,
                   .stages = ptx::SharedAddress(shared_),
                   .row = static_cast<int>(place.row),
                   .column = static_cast<int>(place.column),
                   .a_matrix = MatrixOf(parameters_.a, place.batch),
                   .b_matrix = MatrixOf(parameters_.b, place.batch),
                   .copies = place.thread == 0};
    if (ahead.copies) {
      for (int stage = 0; stage < kOf.stages; ++stage) {
        ptx::InitBarrier(ahead.full(stage), 1);
        ptx::InitBarrier(ahead.empty(stage), kOf.threads() / 32);
      }
      ptx::ShowBarriers();
      for (int tile = 0; tile < min(kOf.stages - 1, parameters_.tiles_k); ++tile) {
        CopyTile(ahead, tile, tile);
      }
    }
    __syncthreads();
    ptx::WaitForPhase(ahead.full(0), 0);
    loaders.a.Load(0, 0, 0, ahead.a[0]);
    loaders.b.Load(0, 0, 0, ahead.b[0]);
    Turn read = {0, 0};
    Turn write = {kOf.stages - 1, 1};  // Every stage is empty at first.
    for (int tile = 0; tile < parameters_.tiles_k; ++tile) {
      RunTileAhead(std::make_integer_sequence<int, kSteps * kParts>(), tile, read, write, ahead);
      read = read.Next();
      write = write.Next();
    }
  }

  __device__ static int MatrixOf(const OperandLines& operand, int64_t batch) {
    return operand.batch_stride_bytes == 0 ? 0 : static_cast<int>(batch);
  }

  __device__ void CopyTile(const Ahead& ahead, int tile, int stage) const {
    constexpr int kALine = TileLinesOf(kOf, mma::Operand::kA).line_bytes;
    constexpr int kBLine = TileLinesOf(kOf, mma::Operand::kB).line_bytes;
    static_assert(kALine <= 128 && kBLine <= 128, "the copy engine's swizzle has 128 bytes");
    static_assert(kABytes % 1024 == 0 && kStageBytes % 1024 == 0, "and counts from 1024");
    const uint32_t shared = ahead.stages + stage * kStageBytes;
    ptx::ArriveAndAnnounce(ahead.full(stage), kStageBytes);
    ptx::CopyTileAsync(shared, &parameters_.a_map, tile * kALine, ahead.row, ahead.a_matrix,
                       ahead.full(stage));
    ptx::CopyTileAsync(shared + kABytes, &parameters_.b_map, tile * kBLine, ahead.column,
                       ahead.b_matrix, ahead.full(stage));
  }

  template <int... kAt>
  __device__ void RunTileAhead(std::integer_sequence<int, kAt...>, int tile, Turn read, Turn write,
                               Ahead& ahead) {
    (RunPartAhead<kAt>(tile, read, write, ahead), ...);
  }

  // Part kAt of the tile's steps, kParts to a step.
  template <int kAt>
  __device__ void RunPartAhead(int tile, Turn read, Turn write, Ahead& ahead) {
    constexpr int kCount = kSteps * kParts;
    static_assert(kSteps % 2 == 0, "the first step of every tile is in the same registers");
    constexpr int kStep = kAt / kParts;
    constexpr int kPart = kAt % kParts;
    constexpr int kNext = (kAt + 1) % kCount;
    constexpr bool kIsLast = kAt == kCount - 1;
    const bool has_next = tile + 1 < parameters_.tiles_k;
    if constexpr (kIsLast) {
      if (has_next) ptx::WaitForPhase(ahead.full(read.Next().stage), read.Next().parity);
    }
    const int offset = (kIsLast ? read.Next() : read).stage * kStageBytes;
    if constexpr (kPart == kParts - 1) {
      ahead.loaders.a.Load(offset, kNext / kParts, 0, ahead.a[(kStep + 1) % 2]);
    }
    ahead.loaders.b.Load(offset, kNext / kParts, kNext % kParts, ahead.b[(kAt + 1) % 2]);
    sums_.Add(ahead.a[kStep % 2], ahead.b[kAt % 2], kPart, ahead.metadata.OfStep(kStep));
    if constexpr (kAt == kCount / 2 - 1) {
      // Late enough for the other warps to be done with the tile before, whose stage it takes.
      if (ahead.copies && tile + kOf.stages - 1 < parameters_.tiles_k) {
        ptx::WaitForPhase(ahead.empty(write.stage), write.parity);
        CopyTile(ahead, tile + kOf.stages - 1, write.stage);
      }
    }
    if constexpr (kPart == kParts - 1) ahead.metadata.Replace(kStep, has_next);
    if constexpr (kIsLast) {
      // The instructions above have taken the last fragments of the stage.
      if (ptx::ThreadInBlock() % 32 == 0) ptx::Arrive(ahead.empty(read.stage));
    }
  }

  __device__ static int Next(int stage) { return stage + 1 == kOf.stages ? 0 : stage + 1; }
  __device__ static int Previous(int stage) { return stage == 0 ? kOf.stages - 1 : stage - 1; }

  // Threads copy the tiles, and fragments are loaded just before the instructions that take them.
  __device__ void RunPlainly(const Place& place, const Loaders& loaders,
                             MetadataWords<kIndex>& metadata) {
    const uint32_t shared = ptx::SharedAddress(shared_);
    Copies copies = {{parameters_.a, place.batch, place.row, shared, place.thread},
                     {parameters_.b, place.batch, place.column, shared + kABytes, place.thread}};
    for (int stage = 0; stage < kOf.stages - 1; ++stage) {
      if (stage < parameters_.tiles_k) copies.Copy(stage * kStageBytes);
      copies.Advance();
      ptx::CommitCopies();
    }
    int stage = 0;
    for (int tile = 0; tile < parameters_.tiles_k; ++tile) {
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
          RunStep(step, stage, loaders, metadata);
          metadata.Replace(step, tile + 1 < parameters_.tiles_k);
        }
      } else {
#pragma unroll 1
        for (int step = 0; tile * kSteps + step < parameters_.steps; ++step) {
          RunStep(step, stage, loaders, metadata);
        }
      }
      stage = Next(stage);
    }
    ptx::WaitForCopies<0>();
  }

  __device__ void RunStep(int step, int stage, const Loaders& loaders,
                          const MetadataWords<kIndex>& metadata) {
    Fragments<kIndex, mma::Operand::kA> a;
    loaders.a.Load(stage * kStageBytes, step, 0, a);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Fragments<kIndex, mma::Operand::kB> b;
      loaders.b.Load(stage * kStageBytes, step, part, b);
      sums_.Add(a, b, part, metadata.OfStep(step));
    }
  }

  // This lane's metadata for the warp's first rows.
  __device__ const uint32_t* MetadataSource(const Place& place) const {
    if constexpr (!kInstruction.is_sparse()) return nullptr;
    const int64_t rows = (place.row + place.warp_row) / kInstruction.m;
    return parameters_.metadata + place.batch * parameters_.metadata_batch_stride_words +
           rows * parameters_.metadata_steps * 32 + place.lane;
  }

  // Writes the accumulators to their places in the tile.
  __device__ void Stage(const Place& place, typename WarpSums<kIndex>::Sum* tile) const {
#pragma unroll
    for (int i = 0; i < WarpSums<kIndex>::kDown; ++i) {
#pragma unroll
      for (int j = 0; j < WarpSums<kIndex>::kAcross; ++j) {
#pragma unroll
        for (int e = 0; e < WarpSums<kIndex>::kElements; ++e) {
          const mma::Position at = PositionInFragment<kIndex, mma::Operand::kD>(place.lane, e);
          const int row =
              place.warp_row + i * kOf.instruction_rows() + kInstruction.m * at.product + at.row;
          const int column = place.warp_column + j * kInstruction.n + at.column;
          tile[row * kTileStride + column] = sums_.At(i, j, e);
        }
      }
    }
  }

  // Through shared memory, so that the code of the epilogue is there once and not for each
  // register.
  __device__ void Finish() {
    using Sum = typename WarpSums<kIndex>::Sum;
    constexpr int kStride = kTileStride;
    const EpilogueParameters& epilogue = parameters_.epilogue;
    const Place place = FindPlace<kIndex>(parameters_);
    Sum* const tile = reinterpret_cast<Sum*>(shared_);
    __syncthreads();  // Every warp has read its fragments.
    Stage(place, tile);
    __syncthreads();
    if (!CanStoreDirectly(epilogue)) {
      FinishTile(epilogue, place.batch, place.row, place.column, tile, kOf.tile.m, kOf.tile.n,
                 kStride, place.thread, kOf.threads());
      return;
    }
    const bool is_row_major = epilogue.d.order == Order::kRowMajor;
    constexpr int kPairs = kOf.tile.n / 2;
#pragma unroll 1
    for (int i = place.thread; i < kOf.tile.m * kPairs; i += kOf.threads()) {
      const int row = is_row_major ? i / kPairs : i % kOf.tile.m;
      const int column = 2 * (is_row_major ? i % kPairs : i / kOf.tile.m);
      const Sum* const pair = tile + row * kStride + column;
      StoreDirectly(epilogue, place.batch, place.row + row, place.column + column, pair[0],
                    pair[1]);
    }
  }

  // What ptxas expands is long enough; but metadata is in registers by its step.
  static constexpr int kUnroll =
      kInstruction.is_sparse() || mma::SupportOn(kInstruction, ptx::kChip) == mma::Support::kNative
          ? kSteps
          : 1;

  const MmaParameters& parameters_;
  std::byte* const shared_;
  WarpSums<kIndex> sums_;
};

template <size_t kIndex>
__global__ void __launch_bounds__(kRow<kIndex>.threads(),
                                  BlocksPerMultiprocessor(kRow<kIndex>, ptx::kChip))
    MmaKernel(const __grid_constant__ MmaParameters parameters) {
  if constexpr (RunsOn(kRow<kIndex>, ptx::kChip)) {
    extern __shared__ __align__(1024) std::byte shared_memory[];
    MmaBlock<kIndex>(parameters, shared_memory).Run();
  }
}

// For functions.h.
template <size_t kIndex>
struct MmaFunction {
  static const void* Get() { return reinterpret_cast<const void*>(&MmaKernel<kIndex>); }
};

}  // namespace gemmd
