// SPDX-License-Identifier: Apache-2.0
//
// Loads fragments ahead of the instructions that use them. A thread holds the fragments of one
// operand for a whole step (kept), and two parts of the other operand's (streamed). While
// instructions use one part, the next part is loaded. The instructions of a step's last part are
// the last to use the kept fragments; after them, the kept fragments of the next step are loaded
// into the same registers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mainloop/place.cuh"
#include "kernels/cuda/device/mainloop/warp_sums.cuh"

namespace gemmd {

// Holds a warp's fragments of a whole tile (HoldsTile).
template <typename Row>
class FragmentsOfTile {
 public:
  // While the first tile is loaded, instructions add nothing.
  __device__ FragmentsOfTile(uint32_t shared, const Place& place)
      : a_loader_(shared, place.warp_row, place.lane),
        b_loader_(shared + TileLinesOf(kOf, mma::Operand::kA).bytes(), place.warp_column,
                  place.lane),
        a_{},
        b_{} {}

  // Loads the tile at `offset` while it runs the instructions of the tile before.
  __device__ void Run(int offset, WarpSums<Row>& sums) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      sums.Add(a_[step], b_[step], 0, nullptr);
      a_loader_.Load(offset, step, 0, a_[step]);
      b_loader_.Load(offset, step, 0, b_[step]);
    }
  }

  // Runs the instructions of the last tile.
  __device__ void Finish(WarpSums<Row>& sums) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) sums.Add(a_[step], b_[step], 0, nullptr);
  }

 private:
  static constexpr CudaRow kOf = kRow<Row>;
  static constexpr int kSteps = StepsOfTile(kOf);

  FragmentLoader<Row, mma::Operand::kA> a_loader_;
  FragmentLoader<Row, mma::Operand::kB> b_loader_;
  Fragments<Row, mma::Operand::kA, InstructionsDown(kOf)> a_[kSteps];
  Fragments<Row, mma::Operand::kB, InstructionsAcross(kOf)> b_[kSteps];
};

template <typename Row>
class FragmentsAhead {
 public:
  // The number of parts in a tile of k.
  static constexpr int kParts = StepsOfTile(kRow<Row>) * StreamedParts(kRow<Row>);
  static_assert(kParts % 2 == 0, "the first part of every tile is in the same registers");

  // `shared` is where the stages begin. While the first tile's first part is loaded, instructions
  // add nothing.
  __device__ FragmentsAhead(uint32_t shared, const Place& place)
      : streamed_loader_(shared + OffsetOfTile(kStreamed), FirstOf(kStreamed, place), place.lane),
        kept_loader_(shared + OffsetOfTile(kKept), FirstOf(kKept, place), place.lane),
        metadata_(shared + kABytes + kBBytes +
                  place.warp_row / kInstruction.m * MetadataLineBytes(kOf) + place.lane * 4),
        streamed_{},
        kept_{} {
    for (uint32_t& word : metadata_words_) word = kOrderedMetadata;
  }

  // Loads part kAt of the tile at `offset` while it runs the instructions of the part before, which
  // for the first part is the last one of the tile before.
  template <int kAt>
  __device__ void Run(int offset, WarpSums<Row>& sums) {
    constexpr int kStep = kAt / kPartsOfStep;
    streamed_loader_.Load(offset, kStep, kAt % kPartsOfStep, streamed_[kAt % 2]);
#pragma unroll
    for (int load = 0; load < kLoadsOfKept; ++load) {
      Add<(kAt + kParts - 1) % kParts>(load, sums);
      if constexpr (kAt % kPartsOfStep == 0) LoadKept(offset, kStep, load);
    }
  }

  // Runs the instructions of the last part.
  __device__ void Finish(WarpSums<Row>& sums) const {
#pragma unroll
    for (int load = 0; load < kLoadsOfKept; ++load) Add<kParts - 1>(load, sums);
  }

 private:
  static constexpr CudaRow kOf = kRow<Row>;
  static constexpr mma::Instruction kInstruction = kOf.instruction;
  static constexpr int kABytes = TileLinesOf(kOf, mma::Operand::kA).bytes();
  static constexpr int kBBytes = TileLinesOf(kOf, mma::Operand::kB).bytes();
  static constexpr mma::Operand kStreamed = StreamedOperand(kOf);
  static constexpr mma::Operand kKept =
      kStreamed == mma::Operand::kA ? mma::Operand::kB : mma::Operand::kA;
  static constexpr bool kStreamsA = kStreamed == mma::Operand::kA;
  using StreamedShape = FragmentShape<Row, kStreamed>;
  using KeptShape = FragmentShape<Row, kKept>;
  static constexpr int kPartsOfStep = StreamedParts(kOf);
  static constexpr int kLoadsOfKept = KeptShape::kAll / KeptShape::kOfLoad;
  static constexpr bool kIsSparse = kInstruction.is_sparse();
  static_assert(!kIsSparse || !kStreamsA, "metadata comes with the rows of A that are kept");
  // Metadata that is valid for any sparsity: the places of a nibble must be in order.
  static constexpr uint32_t kOrderedMetadata = 0x44444444;

  __device__ static int OffsetOfTile(mma::Operand operand) {
    return operand == mma::Operand::kA ? 0 : kABytes;
  }
  __device__ static int FirstOf(mma::Operand operand, const Place& place) {
    return operand == mma::Operand::kA ? place.warp_row : place.warp_column;
  }

  __device__ void LoadKept(int offset, int step, int load) {
    kept_loader_.LoadSome(offset, step, 0, load, kept_);
    if constexpr (kIsSparse) {
#pragma unroll
      for (int i = load * KeptShape::kOfLoad; i < (load + 1) * KeptShape::kOfLoad; ++i) {
        metadata_words_[i] =
            ptx::LoadShared32(metadata_ + offset + i * MetadataLineBytes(kOf) + step * 128);
      }
    }
  }

  // Runs the instructions of part kAt with the kept fragments of one load. Neighbours in a row of D
  // are computed one after the other.
  template <int kAt>
  __device__ void Add(int load, WarpSums<Row>& sums) const {
    constexpr int kPart = kAt % kPartsOfStep;
    constexpr int kRows = kStreamsA ? StreamedShape::kOfLoad : KeptShape::kOfLoad;
    constexpr int kColumns = kStreamsA ? KeptShape::kOfLoad : StreamedShape::kOfLoad;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int kept = load * KeptShape::kOfLoad + (kStreamsA ? j : i);
        const auto& streamed = streamed_[kAt % 2].words[kStreamsA ? i : j];
        if constexpr (kStreamsA) {
          sums.AddOne(kPart * kRows + i, kept, streamed, kept_.words[kept], 0);
        } else {
          sums.AddOne(kept, kPart * kColumns + j, kept_.words[kept], streamed,
                      metadata_words_[kIsSparse ? kept : 0]);
        }
      }
    }
  }

  FragmentLoader<Row, kStreamed> streamed_loader_;
  FragmentLoader<Row, kKept> kept_loader_;
  uint32_t metadata_;  // This lane's, of the warp's first rows in the first stage.
  Fragments<Row, kStreamed, StreamedShape::kOfLoad> streamed_[2];
  Fragments<Row, kKept, KeptShape::kAll> kept_;
  uint32_t metadata_words_[kIsSparse ? InstructionsDown(kOf) : 1];
};

}  // namespace gemmd
