// SPDX-License-Identifier: Apache-2.0
//
// How long a kernel of a GPU should take, from what was measured of it.
#pragma once

#include "kernels/cuda/row.h"
#include "kernels/problem.h"
#include "kernels/select.h"

namespace gemmd {

// Packing of operands, then the longer of two: reading and writing every matrix once, and computing
// tiles in waves, one tile on each multiprocessor, the last wave as long as a full one.
//
// A row's rate is that with every multiprocessor busy: the profile's own of it where it has one,
// otherwise `engine_rate`. In operations a second.
double PredictedSeconds(const CudaRow& row, const Problem& problem, const DeviceProfile& profile,
                        double engine_rate);

}  // namespace gemmd
