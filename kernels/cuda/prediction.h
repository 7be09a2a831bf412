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
// The longer one of moving and computing hides the shorter one but for this part.
inline constexpr double kSeenPart = 0.25;
// Where others are idle, a multiprocessor gets so many times its part of the memory's bandwidth.
inline constexpr double kMostShare = 1.45;

// Where D is written without a product, one after the other in tiles (EpilogueAloneTile): what a
// thread takes for an element, and how many blocks run at once on a multiprocessor. Within 1.6
// times of what an H200 took for 64^2 to 8192^2 elements of three types.
inline constexpr double kAloneElementSeconds = 0.9e-6;
inline constexpr int kAloneBlocks = 4;

// Adds launches, the packing of operands, the longer of two times and a part of the shorter one:
// that of reading and writing every matrix once, and that of computing tiles in waves. A wave has
// one tile on each multiprocessor, and the last wave takes as long as a full one. Matrices of a
// batch are tiles of one launch. Each multiprocessor has its part of the memory's bandwidth, and
// little more: where there are few tiles, the rest of it lies idle. Lines of tiles that are beyond
// the matrices slow the others down.
//
// `rate` is the row's with every multiprocessor busy, in operations a second.
double PredictedSeconds(const CudaRow& row, const Problem& problem, const DeviceProfile& profile,
                        double rate);

}  // namespace gemmd
