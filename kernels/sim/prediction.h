// SPDX-License-Identifier: Apache-2.0
//
// Predicts the time of a simulated product from measurements of this host.
#pragma once

#include <vector>

#include "kernels/device_profile.h"
#include "kernels/kernel.h"

namespace gemmd::sim {

// The parts of one matrix of the problem, rounded up to whole tiles and panels.
SimulatedWork WorkOf(const mma::Instruction& instruction, mma::Chip chip, const Problem& problem);

// Products for measuring the cost of the parts, for kernels of one instruction. They take some
// hundred microseconds each.
std::vector<Problem> SampleProblems(const Kernel& kernel, mma::Chip chip);

// The family's predicted_seconds.
double PredictedSeconds(const Kernel& kernel, const Problem& problem, const DeviceProfile& profile,
                        double rate);

}  // namespace gemmd::sim
