// SPDX-License-Identifier: Apache-2.0
//
// A warp's accumulators, to which instructions add, and its metadata of a sparse A.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/mainloop/fragments.cuh"
#include "kernels/cuda/device/ptx/scaled_ptx.cuh"

namespace gemmd {

// A warp's accumulators.
template <typename Row>
struct WarpSums {
  static constexpr CudaRow kOf = kRow<Row>;
  static constexpr mma::Instruction kInstruction = kOf.instruction;
  static constexpr int kDown = InstructionsDown(kOf);
  static constexpr int kAcross = InstructionsAcross(kOf);
  static constexpr ElementType kType = kInstruction.d;
  static constexpr int kElements = mma::ElementsPerLane(kInstruction, mma::Operand::kD);
  static constexpr int kWords = kType == ElementType::kF16 ? kElements / 2 : kElements;
  using Word = std::conditional_t<kType == ElementType::kF64, double,
                                  std::conditional_t<kType == ElementType::kF32, float, uint32_t>>;
  // An accumulator as the epilogue takes it.
  using Sum = std::conditional_t<kType == ElementType::kF64, double,
                                 std::conditional_t<kType == ElementType::kS32, int32_t, float>>;

  static constexpr bool kPromotes = kOf.promotion_k > 0;

  Word words[kDown][kAcross][kWords];
  // Sums promoted so far.
  Word totals[kPromotes ? kDown : 1][kPromotes ? kAcross : 1][kPromotes ? kWords : 1];

  __device__ void Clear() {
    ForEach([&](int i, int j, int w) {
      words[i][j][w] = 0;
      if constexpr (kPromotes) totals[i][j][w] = 0;
    });
  }

  // Adds the sums to the totals, and resets the sums.
  __device__ void Promote() {
    static_assert(kPromotes && kType == ElementType::kF32);
    ForEach([&](int i, int j, int w) {
      totals[i][j][w] += words[i][j][w];
      words[i][j][w] = 0;
    });
  }
  // Moves the totals to the sums.
  __device__ void Finish() {
    Promote();
    ForEach([&](int i, int j, int w) { words[i][j][w] = totals[i][j][w]; });
  }

  __device__ Sum At(int i, int j, int element) const {
    if constexpr (kType == ElementType::kF16) {
      const uint32_t pair = words[i][j][element / 2];
      return ptx::F32FromF16(static_cast<uint16_t>(element % 2 == 0 ? pair : pair >> 16));
    } else {
      return static_cast<Sum>(words[i][j][element]);
    }
  }

  // Adds the products of one step; `b` has the columns of part `part`.
  template <int kCount>
  __device__ void Add(const Fragments<Row, mma::Operand::kA, kDown>& a,
                      const Fragments<Row, mma::Operand::kB, kCount>& b, int part,
                      const uint32_t* metadata) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        AddOne(i, part * kCount + j, a.words[i], b.words[j],
               kInstruction.is_sparse() ? metadata[i] : 0);
      }
    }
  }

  // Adds the products of one instruction.
  template <typename A, typename B>
  __device__ void AddOne(int i, int j, const A& a, const B& b, uint32_t metadata) {
    AddTo(words[i][j], a, b, metadata);
  }

 private:
  template <typename Body>
  __device__ static void ForEach(const Body& body) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) body(i, j, w);
      }
    }
  }

  // Moves the sums from D's lanes to C's lanes.
  __device__ static void Exchange(const Word (&d)[kWords], float (&c)[kElements]) {
    constexpr bool kChanges = SumsChangeLanes(kRow<Row>);
    if constexpr (!kChanges) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) c[e] = d[e];
    } else {
      extern __shared__ __align__(1024) std::byte shared_memory[];
      constexpr CudaRow kTheRow = kRow<Row>;
      const int thread = ptx::ThreadInBlock();
      float* const matrix =
          reinterpret_cast<float*>(shared_memory + kTheRow.stages * StageBytes(kTheRow)) +
          thread / 32 * ExchangeElements(kTheRow);
      const auto place = [](const mma::Position& at) {
        return (at.product * kInstruction.m + at.row) * kInstruction.n + at.column;
      };
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        matrix[place(PositionInFragment<Row, mma::Operand::kD>(thread % 32, e))] = d[e];
      }
      __syncwarp();
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        c[e] = matrix[place(PositionInFragment<Row, mma::Operand::kC>(thread % 32, e))];
      }
      __syncwarp();
    }
  }

  template <typename A, typename B>
  __device__ static void AddTo(Word (&c)[kWords], const A& a, const B& b, uint32_t metadata) {
    using Source = RowMnemonic<Row>;
    // Problems have no factors of blocks, so all of them are 1.
    constexpr uint32_t kOnes = 0x01010101u * mma::OneOf(kInstruction.scale);
    if constexpr (kInstruction.scales > 0 && kInstruction.is_sparse()) {
      ptx::MmaSparseScaled<Source>(c, a, b, metadata, kOnes, kOnes);
    } else if constexpr (kInstruction.scales > 0) {
      ptx::MmaScaled<Source>(c, a, b, kOnes, kOnes);
    } else if constexpr (kInstruction.is_sparse()) {
      ptx::MmaSparse<Source>(c, a, b, metadata);
    } else if constexpr (kInstruction.c == kInstruction.d) {
      ptx::Mma<Source>(c, a, b);
    } else if constexpr (kInstruction.c == ElementType::kF16) {
      float singles[kElements];
      Exchange(c, singles);
      uint32_t pairs[kElements / 2];
#pragma unroll
      for (int w = 0; w < kElements / 2; ++w) {
        pairs[w] = ptx::PackF16(singles[2 * w], singles[2 * w + 1]);
      }
      ptx::Mma<Source>(c, a, b, pairs);
    } else {
      float singles[kElements];
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        singles[e] = ptx::F32FromF16(static_cast<uint16_t>(c[e / 2] >> e % 2 * 16));
      }
      ptx::Mma<Source>(c, a, b, singles);
    }
  }
};

// A warp's metadata of one tile of k, from the workspace, for loops that do not load fragments
// ahead. Once the words of a step are used, those of the same step of the next tile replace them.
// For a dense A this does nothing.
template <typename Row>
class MetadataWords {
 public:
  // `source` points at this lane's word of the warp's first rows and the first step; `steps` counts
  // the steps of all of k, in whole tiles.
  __device__ MetadataWords(const uint32_t* source, int steps)
      : source_(source), bytes_of_rows_(steps * 128) {
    if constexpr (kIsSparse) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) Load(s);
      source_ += kSteps * 32;
    }
  }

  __device__ const uint32_t* OfStep(int step) const { return words_[kIsSparse ? step : 0]; }

  // Loads the step's words of the next tile, if there is one.
  __device__ void Replace(int step, bool has_next_tile) {
    if constexpr (kIsSparse) {
      if (has_next_tile) Load(step);
      if (step == kSteps - 1) source_ += kSteps * 32;
    }
  }

 private:
  static constexpr CudaRow kOf = kRow<Row>;
  static constexpr bool kIsSparse = kOf.instruction.is_sparse();
  static constexpr int kDown = kIsSparse ? InstructionsDown(kOf) : 1;
  static constexpr int kSteps = kIsSparse ? StepsOfTile(kOf) : 1;

  __device__ void Load(int step) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      words_[step][i] = __ldg(ptx::Advance(source_ + step * 32, i, bytes_of_rows_));
    }
  }

  const uint32_t* source_;
  int bytes_of_rows_;
  uint32_t words_[kSteps][kDown];
};

}  // namespace gemmd
