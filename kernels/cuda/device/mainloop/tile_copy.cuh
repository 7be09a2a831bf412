// SPDX-License-Identifier: Apache-2.0
//
// Copies an operand's tiles to shared memory with cp.async, using all threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mainloop/row_constants.cuh"
#include "kernels/cuda/device/mma_parameters.h"
#include "kernels/cuda/device/ptx/ptx.cuh"

namespace gemmd {

// Copies one operand's tiles, one after the other along k. Each thread copies the same chunk of
// several lines, one line in each round of copies.
//
// Elements beyond k become zero. Rows and columns beyond m and n become copies of the last one,
// because their results are not stored.
template <typename Row, mma::Operand kOperand>
class TileCopy {
 public:
  static constexpr TileLines kLines = TileLinesOf(kRow<Row>, kOperand);
  static constexpr int kChunks = kLines.chunks();
  static constexpr int kLinesOfRound = kRow<Row>.threads() / kChunks;
  static constexpr int kRounds = (kLines.lines + kLinesOfRound - 1) / kLinesOfRound;

  // `first` is the tile's first row of A or column of B.
  __device__ TileCopy(const OperandLines& operand, int64_t batch, int64_t first, uint32_t shared,
                      int thread)
      : operand_(operand), line_(thread / kChunks) {
    const int chunk = thread % kChunks;
    shared_ = shared + OffsetInTile<Row, kOperand>(line_, 16 * chunk);
    source_ = operand.data + batch * operand.batch_stride_bytes + 16 * chunk +
              int64_t{line_} * operand.line_stride_bytes;
    bytes_ = operand.line_bytes - 16 * chunk;
    if constexpr (kIsAlongK) {
      source_ += first * operand.line_stride_bytes;
      lines_after_ = operand.lines - 1 - static_cast<int>(first) - line_;
    } else {
      constexpr int kBits = mma::ContainerBits(kRow<Row>.instruction, kOperand);
      source_ += first * kBits / 8;
      bytes_ -= static_cast<int>(first * kBits / 8);
      lines_after_ = operand.lines - 1 - line_;
    }
  }

  // Copies the tile to the stage at `offset` of the shared memory.
  __device__ void Copy(int offset) const {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (kLines.lines % kLinesOfRound != 0 && line_ + i * kLinesOfRound >= kLines.lines) break;
      const bool is_inside = kIsAlongK || i * kLinesOfRound <= lines_after_;
      ptx::CopyAsync(
          shared_ + offset + i * kLinesOfRound * kLines.stride(),
          ptx::Advance(source_, min(i * kLinesOfRound, lines_after_), operand_.line_stride_bytes),
          is_inside && bytes_ > 0);
    }
  }

  // Moves on to the next tile.
  __device__ void Advance() {
    if constexpr (kIsAlongK) {
      source_ += kLines.line_bytes;
      bytes_ -= kLines.line_bytes;
    } else {
      source_ += int64_t{kLines.lines} * operand_.line_stride_bytes;
      lines_after_ -= kLines.lines;
    }
  }

 private:
  static constexpr bool kIsAlongK = kLines.axis == LineAxis::kK;
  static_assert(kRow<Row>.threads() % kChunks == 0, "a thread copies the same chunk of every line");
  static_assert(kLines.SwizzleOf(kLinesOfRound) == 0 || kRounds == 1,
                "chunks trade places alike in every round");

  const OperandLines& operand_;
  const std::byte* source_;  // In this thread's first line.
  int bytes_;                // From this thread's chunk to the line's end; may be negative.
  int line_;                 // This thread's first line in the tile.
  int lines_after_;          // Operand's lines after this thread's first one; may be negative.
  uint32_t shared_;
};

}  // namespace gemmd
