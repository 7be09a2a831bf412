// SPDX-License-Identifier: Apache-2.0
//
// Weights of s4 in narrow warpgroup rows: instead of dequantizing the operand with the longer side
// in memory, the kernel brings its codes and factors to shared memory and dequantizes them in
// registers (device/mainloop/weights_product.cuh). So a product with few rows reads few bytes. The
// bits are those of the dequantized product.
//
// For that, the weights are packed once into tiles of 64 lines by chunks of 64 elements along k,
// the chunks of a tile one after the other: 64 factors, f32, one for each line (1 without factors,
// or beyond the weights); then, for each thread of four warps, 16 bytes with its 32 codes.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/row.h"
#include "kernels/dequantize.h"
#include "kernels/device_profile.h"
#include "kernels/kernel.h"
#include "kernels/matrix/element_codes.h"
#include "kernels/problem.h"

namespace gemmd {

inline constexpr int kWeightLines = 64;  // Of a tile.
inline constexpr int kWeightDepth = 64;  // Of a chunk: elements along k.
inline constexpr int kWeightChunks = 2;  // Chunks of a stage.
inline constexpr int kWeightThreads = 128;

inline constexpr int kWeightFactorBytes = kWeightLines * 4;
inline constexpr int kWeightChunkBytes = kWeightFactorBytes + kWeightThreads * 16;
inline constexpr int kWeightCodes = 32;  // Of a thread, in a chunk.

// Where code `index` of a thread's codes of a chunk lies in the tile's chunk: its line, and its
// element along k. `thread` is one of those 128. A thread has 8 codes for each of four
// instructions, the fragment of an instruction of 16 bits; see PositionOfWeight for their order.
struct WeightPosition {
  int line;
  int element;
};
constexpr WeightPosition PositionOfWeight(int thread, int index) {
  const int lane = thread % 32;
  const int in_step = index % 8;  // Two lines, two halves of the instruction's 16 of k, two codes.
  const int pair = in_step / 2;
  return {thread / 32 * 16 + lane / 4 + pair % 2 * 8,
          index / 8 * 16 + pair / 2 * 8 + lane % 4 * 2 + in_step % 2};
}
// The bit at which code `index` begins in the thread's 16 bytes: those of a pair are 16 bits apart,
// so that one operation extracts both into halves of a word.
constexpr int BitOfWeight(int index) { return index / 8 * 32 + index % 2 * 16 + index % 8 / 2 * 4; }

// The size of packed weights.
struct WeightsPlan {
  int64_t lines = 0;
  int64_t tiles = 0;
  int64_t chunks = 0;  // Of a tile: whole stages.

  int64_t bytes_of_tile() const { return chunks * kWeightChunkBytes; }
  int64_t bytes() const { return tiles * bytes_of_tile(); }
};

WeightsPlan WeightsPlanOf(int64_t lines, int64_t k);

// How a row multiplies a problem with weights in registers.
struct WeightsMultiplication {
  mma::Operand weights = mma::Operand::kB;  // The quantized operand of the problem.
  // Of the dequantized problem, whose A are the weights, with lines along k.
  Multiplication multiplication;
  Problem dequantized;  // As MultiplicationOf takes it.
  WeightsPlan plan;
};

// Absent if the row does not do that: for tall rows, several matrices, other types, factors of
// blocks that are not a multiple of 64 along k, or another operand that is quantized, or lies
// across k.
std::optional<WeightsMultiplication> WeightsMultiplicationOf(const CudaRow& row,
                                                             const Problem& problem);

// Blocks of its kernel that share a multiprocessor.
constexpr int BlocksOfWeights(const CudaRow& row) { return row.tile.n <= 32 ? 4 : 2; }

// The time of such a product, its weights packed: that of reading all bytes or, if it is longer,
// that of the chunks of a tile one after the other, in rounds of tiles.
double PredictedWeightsSeconds(const CudaRow& row, const Problem& problem,
                               const DeviceProfile& profile);

}  // namespace gemmd
