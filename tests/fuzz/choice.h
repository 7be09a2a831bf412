// SPDX-License-Identifier: Apache-2.0
//
// Checks the choice of a kernel for a valid problem: the kernel supports it, Select and FindBest
// agree, and no number of an explanation is below 0.
#pragma once

#include "kernels/kernel.h"
#include "kernels/problem.h"
#include "kernels/select.h"

namespace gemmd::fuzz {

// Asking hundreds of kernels takes longer than parsing; a thorough check asks each for its reason.
void CheckChoice(DeviceKind kind, const Problem& problem, const Constraints& constraints,
                 bool is_thorough);

}  // namespace gemmd::fuzz
