// SPDX-License-Identifier: Apache-2.0
//
// How long a kernel of a GPU should take, from what was measured of it.
#pragma once

#include "kernels/cuda/row.h"
#include "kernels/device_profile.h"
#include "kernels/problem.h"

namespace gemmd {

// Packing of operands, then the longer of two: reading and writing every matrix once, and computing
// tiles in waves, one tile on each multiprocessor, the last wave as long as a full one.
//
// `rate` is that of the row with every multiprocessor busy, in operations a second.
double PredictedSeconds(const CudaRow& row, const Problem& problem, const DeviceProfile& profile,
                        double rate);

}  // namespace gemmd
