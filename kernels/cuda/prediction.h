// SPDX-License-Identifier: Apache-2.0
//
// Predicts the time of a GPU kernel from measured rates.
#pragma once

#include "kernels/cuda/row.h"
#include "kernels/device_profile.h"
#include "kernels/problem.h"

namespace gemmd {

// The time of a nearly empty launch with its events: 6.5 to 7.8 us on an H200, including the
// kernel's own beginning and end.
inline constexpr double kLaunchSeconds = 6e-6;
// The time of an additional kernel of the same product, which packs an operand.
inline constexpr double kPackSeconds = 8e-6;
// The next constants were fitted to 15 rows of bf16 and 39 shapes on an H200, from 64^3 to 4096^3,
// m of 1 to 1024 and batches of 32^3 to 1024^3: their choice takes 1.013 times as long as the best
// row in the geometric mean, and at most 1.14 times. The latency of a stage's bytes under load.
inline constexpr double kStageSeconds = 1.3e-6;
// The bandwidth of all multiprocessors together for lines that are not aligned to 128 bytes, and
// that of one multiprocessor for aligned lines.
inline constexpr double kRaggedBytesPerSecond = 6.4e12;
inline constexpr double kBytesPerSecondEach = 6.8e10;
// An instruction waits this long for the sums of the one before, if a warp holds whole tiles: 896
// of them take 34 us for 16 x 4096 x 14336.
inline constexpr double kChainedSeconds = 3.8e-8;
// The time of a tile in addition to its steps along k: start, epilogue and store, by elements of
// the tile. A narrow row stores elements individually. If warpgroups take turns, or blocks share a
// multiprocessor, other tiles hide a part of this time; with persistent blocks, most of it.
inline constexpr double kTileSeconds = 0.88e-6;
inline constexpr double kTileElementSeconds = 5e-11;
inline constexpr double kNarrowElementSeconds = 3.2e-10;
// GELU and SiLU in registers: 3.1e-10 to 4e-10 for bf16 of 4096^3 and 1024x4096x1024.
inline constexpr double kActivationElementSeconds = 3.3e-10;
inline constexpr double kSeenInTurns = 0.67;
inline constexpr double kSeenOfBlocks = 0.7;
inline constexpr double kSeenOfStayingBlocks = 0.06;
// If others are idle, a multiprocessor gets this multiple of its share of the memory bandwidth.
inline constexpr double kMaxShare = 2.5;

// For a D without a product, written in tiles (EpilogueAloneTile): the time per element and thread,
// and the number of blocks per multiprocessor. Within a factor of 1.6 of an H200's times for 64^2
// to 8192^2 elements of three types.
inline constexpr double kAloneElementSeconds = 0.9e-6;
inline constexpr int kAloneBlocks = 4;

// Adds launches, the packing of operands and the longer of two times: that of reading and writing
// every matrix once, and that of computing tiles in waves. In a wave each multiprocessor has as
// many tiles as are left, up to the blocks that it holds; the last wave takes as long as a full
// one. A step along k takes at least as long as filling its stages, and as its chain of
// instructions in a warp that holds whole tiles. Matrices of a batch are tiles of one launch. Each
// multiprocessor has its share of the memory bandwidth, and up to kMaxShare times that if others
// are idle. Kept sums need another launch, which makes D from them. Tile lines beyond the matrices
// slow down the rest.
//
// `rate` is the row's with every multiprocessor full, in operations a second.
double PredictedSeconds(const CudaRow& row, const Problem& problem, const DeviceProfile& profile,
                        double rate);

}  // namespace gemmd
