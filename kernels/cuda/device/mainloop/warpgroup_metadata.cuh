// SPDX-License-Identifier: Apache-2.0
//
// Loads the metadata of a sparse A from a stage for the instructions of a warpgroup. An instruction
// reads its metadata register some time after it was issued. The compiler does not know that and
// would reuse the register for the next load. So stages alternate between two sets of words, and
// Keep preserves a set until its instructions are done. If ptxas cannot prove this safe, it warns
// with C7513 and serializes the products.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mainloop/row_constants.cuh"
#include "kernels/cuda/device/ptx/wgmma_ptx.cuh"

namespace gemmd {

template <typename Row>
class WarpgroupMetadata {
 public:
  static constexpr CudaRow kOf = kRow<Row>;
  static constexpr bool kIsSparse = kOf.instruction.is_sparse();
  static constexpr int kSets = kIsSparse ? 2 : 1;
  static constexpr int kDown = InstructionsDown(kOf);
  static constexpr int kStepsOfWord = StepsOfMetadata(kOf);
  static constexpr int kWords = kIsSparse ? MetadataWordsTogether(kOf) : 1;
  static_assert(kWords == 1 || kWords == 2);
  using Words = uint32_t[kDown][kWords];

  // `thread` is a number within the warpgroup; `first` is where the first stage has metadata.
  __device__ WarpgroupMetadata(uint32_t first, int warpgroup, int thread)
      : first_(first + (warpgroup * kDown * kLinesOfInstruction + thread / 32) * kLineBytes +
               thread % 32 * kWords * 4) {}

  // Loads the words of the stage that is `offset` bytes from the first one.
  __device__ void Load(int offset, Words& words) const {
    if constexpr (kIsSparse) {
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        const uint32_t at = first_ + offset + i * kLinesOfInstruction * kLineBytes;
        if constexpr (kWords == 1) {
          words[i][0] = ptx::LoadShared32(at);
        } else {
          // ptxas was seen to delay the second of two single loads.
          const uint64_t both = ptx::LoadShared64(at);
          words[i][0] = static_cast<uint32_t>(both);
          words[i][1] = static_cast<uint32_t>(both >> 32);
        }
      }
    }
  }

  static __device__ void Keep(const Words& words) {
    if constexpr (kIsSparse) {
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int word = 0; word < kWords; ++word) ptx::KeepRegister(words[i][word]);
      }
    }
  }

 private:
  static constexpr int kLinesOfInstruction = kOf.instruction.m / kMetadataRows;
  static constexpr int kLineBytes = MetadataLineBytes(kOf);

  const uint32_t first_;
};

}  // namespace gemmd
