// SPDX-License-Identifier: Apache-2.0
//
// The kernel of every row: a multistage product on tensor cores.
//
// Tiles of A and B come into shared memory several stages ahead, by the copy engine (from sm_90 on)
// or by cp.async, and from there into fragments by ldmatrix (f64 and m8n8k4: by loads of 8 bytes;
// wmma: by its own), ahead of the instructions where registers are left. Each accumulator gets the
// instructions in ascending k, from zero.
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
    sums_.Clear();
    if constexpr (kIsAhead) {
      RunAhead(place, loaders);
      Synchronize();  // Nothing more comes from the other blocks.
    } else {
      RunPlainly(place, loaders);
      __syncthreads();
    }
    Finish();  // Every warp has read its fragments.
  }

 private:
  static constexpr CudaRow kOf = kRow<kIndex>;
  static constexpr mma::Instruction kInstruction = kOf.instruction;
  static constexpr bool kIsAhead = LoadsAheadOn(kOf, ptx::kChip);
  static constexpr int kCluster = ClusterOn(kOf, ptx::kChip);
  static constexpr int kABytes = TileLinesOf(kOf, mma::Operand::kA).bytes();
  static constexpr int kBBytes = TileLinesOf(kOf, mma::Operand::kB).bytes();
  static constexpr int kMetadataLineBytes = MetadataLineBytes(kOf);
  static constexpr int kTileBytes = TileBytes(kOf);
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
  __device__ static int StageOf(int tile) { return tile % kOf.stages; }
  __device__ static int ParityOf(int tile) { return tile / kOf.stages % 2; }

  // Metadata of any sparsity: nibbles must keep an order.
  static constexpr uint32_t kOrderedMetadata = 0x44444444;

  // What the tiles of RunAhead share. `full` says that a stage's tiles are there, `empty` that
  // every warp of the cluster has read them; so warps need not keep in step.
  struct Ahead {
    const Loaders& loaders;
    uint32_t stages;    // Shared memory.
    uint32_t metadata;  // Of the warp's first rows in the first stage, this lane's.
    int row;
    int column;
    Fragments<kIndex, mma::Operand::kA> a;
    Fragments<kIndex, mma::Operand::kB> b[2];
    uint32_t metadata_words[kInstruction.is_sparse() ? InstructionsDown(kOf) : 1];

    __device__ void ClearFragments() {
      a = {};
      b[0] = b[1] = {};
      for (uint32_t& word : metadata_words) word = kOrderedMetadata;
    }

    __device__ uint32_t full(int stage) const {
      return stages + kOf.stages * kStageBytes + stage * kBarrierBytes;
    }
    __device__ uint32_t empty(int stage) const { return full(stage) + kBarrierBytes / 2; }
  };

  // The copy engine brings tiles, several ahead. Fragments are loaded ahead of the instructions
  // that take them: those of B by one part of a step; a row of A for the next step when the
  // instructions of its row are done.
  __device__ void RunAhead(const Place& place, const Loaders& loaders) {
    const uint32_t shared = ptx::SharedAddress(shared_);
    Ahead ahead = {.loaders = loaders,
                   .stages = shared,
                   .metadata = shared + kABytes + kBBytes +
                               place.warp_row / kInstruction.m * kMetadataLineBytes +
                               place.lane * 4,
                   .row = static_cast<int>(place.row),
                   .column = static_cast<int>(place.column)};
    if (CopiesTiles()) {
      for (int stage = 0; stage < kOf.stages; ++stage) {
        ptx::InitBarrier(ahead.full(stage), 1);
        ptx::InitBarrier(ahead.empty(stage), kCluster * (kOf.threads() / 32));
      }
      ptx::ShowBarriers();
    }
    Synchronize();
    if (CopiesTiles()) {
      for (int tile = 0; tile < min(kOf.stages - 1, parameters_.tiles_k); ++tile) {
        CopyTile(ahead, tile);
      }
    }
    // The first tile's first fragments come with instructions that add nothing.
    ahead.ClearFragments();
    for (int tile = 0; tile < parameters_.tiles_k; ++tile) {
      TurnToTile(tile, ahead);
      RunTileAhead(std::make_integer_sequence<int, kSteps * kParts>(), tile, ahead);
    }
    AddPart<kSteps * kParts - 1>(ahead);
  }

  // All threads of the cluster.
  __device__ static void Synchronize() {
    if constexpr (kCluster == 1) {
      __syncthreads();
    } else {
      ptx::SynchronizeCluster();
    }
  }

  // One thread tells the copy engine what to do.
  __device__ static bool CopiesTiles() { return ptx::ThreadInBlock() == 0; }

  __device__ int MatrixOf(const OperandLines& operand) const {
    return operand.batch_stride_bytes == 0 ? 0
                                           : static_cast<int>(blockIdx.z + parameters_.first_batch);
  }

  // Blocks of a cluster bring a part of B's tile each, for all of them.
  __device__ void CopyTile(const Ahead& ahead, int tile) const {
    constexpr TileLines kA = TileLinesOf(kOf, mma::Operand::kA);
    constexpr TileLines kB = TileLinesOf(kOf, mma::Operand::kB);
    static_assert(kA.line_bytes <= 128 && kB.line_bytes <= 128, "the swizzle has 128 bytes");
    static_assert(kABytes % kSwizzleBytes == 0 && kBBytes / kCluster % kSwizzleBytes == 0,
                  "and counts from 1024");
    const uint32_t barrier = ahead.full(StageOf(tile));
    const uint32_t shared = ahead.stages + StageOf(tile) * kStageBytes;
    const int a_matrix = MatrixOf(parameters_.a);
    const int b_matrix = MatrixOf(parameters_.b);
    ptx::ArriveAndAnnounce(barrier, kTileBytes);
    ptx::CopyTileAsync(shared, &parameters_.a_map, tile * (kA.line_bytes / 4), ahead.row, a_matrix,
                       barrier);
    if constexpr (kInstruction.is_sparse()) {
      ptx::CopyTileAsync(shared + kABytes + kBBytes, &parameters_.metadata_map,
                         tile * (kMetadataLineBytes / 4), ahead.row / kInstruction.m, a_matrix,
                         barrier);
    }
    if constexpr (kCluster == 1) {
      ptx::CopyTileAsync(shared + kABytes, &parameters_.b_map, tile * (kB.line_bytes / 4),
                         ahead.column, b_matrix, barrier);
    } else {
      constexpr int kLines = kB.lines / kCluster;
      const int first = ptx::BlockInCluster() * kLines;
      ptx::CopyTileToAllAsync(shared + kABytes + first * kB.line_bytes, &parameters_.b_map,
                              tile * (kB.line_bytes / 4), ahead.column + first, b_matrix, barrier,
                              (1 << kCluster) - 1);
    }
  }

  // Done with the fragments of the tile before: lets its stage go, has the stage of the one before
  // that filled, and waits for this one. All at one place, since each branch waits for every load.
  __device__ void TurnToTile(int tile, const Ahead& ahead) const {
    if (tile > 0) {
      Release(ahead.empty(StageOf(tile - 1)));
      const int next = tile + kOf.stages - 2;
      if (CopiesTiles() && next < parameters_.tiles_k) {
        // Every stage is empty at first.
        ptx::WaitForPhase(ahead.empty(StageOf(next)), ParityOf(next) ^ 1);
        CopyTile(ahead, next);
      }
    }
    ptx::WaitForPhase(ahead.full(StageOf(tile)), ParityOf(tile));
  }

  // For every block of the cluster: each writes to the stage of all.
  __device__ static void Release(uint32_t barrier) {
    const int lane = ptx::ThreadInBlock() % 32;
    if constexpr (kCluster == 1) {
      if (lane == 0) ptx::Arrive(barrier);
    } else {
      if (lane < kCluster) ptx::ArriveAt(lane, barrier);
    }
  }

  // The instructions of the last part of the tile before, and those of this one but for its last.
  template <int... kAt>
  __device__ void RunTileAhead(std::integer_sequence<int, kAt...>, int tile, Ahead& ahead) {
    const int offset = StageOf(tile) * kStageBytes;
    (RunPartAhead<kAt>(offset, ahead), ...);
  }

  // Loads what part kAt of the tile's steps takes, kParts to a step, beside the instructions of the
  // part before it.
  template <int kAt>
  __device__ void RunPartAhead(int offset, Ahead& ahead) {
    constexpr int kCount = kSteps * kParts;
    static_assert(kCount % 2 == 0, "the first part of every tile is in the same registers");
    constexpr int kStep = kAt / kParts;
    ahead.loaders.b.Load(offset, kStep, kAt % kParts, ahead.b[kAt % 2]);
#pragma unroll
    for (int i = 0; i < InstructionsDown(kOf); ++i) {
      AddRowOfPart<(kAt + kCount - 1) % kCount>(i, ahead);
      if constexpr (kAt % kParts == 0) LoadRow(ahead, offset, kStep, i);
    }
  }

  template <int kAt>
  __device__ void AddPart(Ahead& ahead) {
#pragma unroll
    for (int i = 0; i < InstructionsDown(kOf); ++i) AddRowOfPart<kAt>(i, ahead);
  }

  template <int kAt>
  __device__ void AddRowOfPart(int i, Ahead& ahead) {
    sums_.AddRow(i, ahead.a, ahead.b[kAt % 2], kAt % kParts,
                 ahead.metadata_words[kInstruction.is_sparse() ? i : 0]);
  }

  // What instructions of row `i` take of A; of those that one load serves, with the last one.
  __device__ static void LoadRow(Ahead& ahead, int offset, int step, int i) {
    constexpr int kOfLoad = FragmentLoader<kIndex, mma::Operand::kA>::kOfLoad;
    if (i % kOfLoad == kOfLoad - 1) ahead.loaders.a.LoadSome(offset, step, i / kOfLoad, ahead.a);
    if constexpr (kInstruction.is_sparse()) {
      ahead.metadata_words[i] =
          ptx::LoadShared32(ahead.metadata + offset + i * kMetadataLineBytes + step * 128);
    }
  }

  __device__ static int Next(int stage) { return stage + 1 == kOf.stages ? 0 : stage + 1; }
  __device__ static int Previous(int stage) { return stage == 0 ? kOf.stages - 1 : stage - 1; }

  // Threads copy the tiles, and fragments are loaded just before the instructions that take them.
  __device__ void RunPlainly(const Place& place, const Loaders& loaders) {
    const uint32_t shared = ptx::SharedAddress(shared_);
    MetadataWords<kIndex> metadata(MetadataSource(place), parameters_.metadata_steps);
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
          const int row = place.warp_row + i * kOf.instruction_rows() +
                          kInstruction.m * at.product + LineInTile<kIndex>(at.row);
          const int column = place.warp_column + j * kInstruction.n + LineInTile<kIndex>(at.column);
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
