// SPDX-License-Identifier: Apache-2.0
//
// How long a GPU kernel should take, from what was measured of it.
#pragma once

#include "kernels/cuda/row.h"
#include "kernels/device_profile.h"
#include "kernels/problem.h"

namespace gemmd {

// What a launch and its events take that hardly does anything: 6.5 to 7.8 us on an H200, of which a
// kernel's own beginning and end are a part.
inline constexpr double kLaunchSeconds = 6e-6;
// What one more kernel of the same product takes, which packs an operand.
inline constexpr double kPackSeconds = 8e-6;
// The next constants were fitted to 15 rows of bf16 and 39 shapes on an H200, from 64^3 to 4096^3,
// m of 1 to 1024 and batches of 32^3 to 1024^3: what they choose takes 1.013 times as long as the
// best row in the geometric mean, and 1.14 times at most.
//
// From the request of a stage's bytes to their arrival, under load.
inline constexpr double kStageSeconds = 1.3e-6;
// The bytes a second that all multiprocessors together get of lines that do not begin on multiples
// of 128 bytes; of others they get more than they need.
inline constexpr double kRaggedBytesPerSecond = 6.4e12;
// What a tile takes beside its steps along k: its beginning, its epilogue and its store, by
// elements of the tile. A narrow row stores each element by itself. Where warpgroups take turns,
// and where blocks share a multiprocessor, other tiles hide a part of it: most of it where blocks
// stay for one tile after the other.
inline constexpr double kTileSeconds = 0.88e-6;
inline constexpr double kTileElementSeconds = 5e-11;
inline constexpr double kNarrowElementSeconds = 3.2e-10;
inline constexpr double kSeenInTurns = 0.67;
inline constexpr double kSeenOfBlocks = 0.7;
inline constexpr double kSeenOfStayingBlocks = 0.06;
// Where others are idle, a multiprocessor gets so many times its part of the memory's bandwidth.
inline constexpr double kMaxShare = 2.5;

// Where D is written without a product, one after the other in tiles (EpilogueAloneTile): what a
// thread takes for an element, and how many blocks run at once on a multiprocessor. Within 1.6
// times of what an H200 took for 64^2 to 8192^2 elements of three types.
inline constexpr double kAloneElementSeconds = 0.9e-6;
inline constexpr int kAloneBlocks = 4;

// Adds launches, the packing of operands and the longer of two times: that of reading and writing
// every matrix once, and that of computing tiles in waves. A wave has as many tiles on each
// multiprocessor as there are, up to the blocks that it holds, and the last wave takes as long as a
// full one. A step along k takes no less than its stages take to be filled. Matrices of a batch are
// tiles of one launch. Each multiprocessor has its part of the memory's bandwidth, and kMaxShare
// times that where others are idle. Sums that are kept take one more launch, which makes D of them.
// Lines of tiles that are beyond the matrices slow the others down.
//
// `rate` is the row's with every multiprocessor full, in operations a second.
double PredictedSeconds(const CudaRow& row, const Problem& problem, const DeviceProfile& profile,
                        double rate);

}  // namespace gemmd
