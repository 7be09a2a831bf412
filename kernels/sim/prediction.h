// SPDX-License-Identifier: Apache-2.0
//
// How long a simulated product should take, from what was measured of this host.
#pragma once

#include <vector>

#include "kernels/device_profile.h"
#include "kernels/kernel.h"

namespace gemmd::sim {

// The parts of one matrix of the problem: whole tiles and panels, however few elements of them the
// problem has.
SimulatedWork WorkOf(const mma::Instruction& instruction, mma::Chip chip, const Problem& problem);

// Products that show what the parts cost, for kernels of one instruction. They take some hundred
// microseconds each.
std::vector<Problem> SampleProblems(const Kernel& kernel, mma::Chip chip);

// The family's predicted_seconds.
double PredictedSeconds(const Kernel& kernel, const Problem& problem, const DeviceProfile& profile,
                        double rate);

}  // namespace gemmd::sim
