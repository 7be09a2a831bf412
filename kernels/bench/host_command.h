// SPDX-License-Identifier: Apache-2.0
//
// gemmbench on this processor, as its options say: the CPU's rows beside their libraries, or the
// simulator.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/bench/options.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

// Measures, prints, writes files. False where a result was wrong or a row failed.
// Errors: as of Session::End.
absl::StatusOr<bool> RunOnCpu(const Options& options, const std::vector<const Kernel*>& rows);

// Measures on the simulator of the options' chip, and does the same; also false where that has none
// of the rows.
absl::StatusOr<bool> RunOnSimulator(const Options& options, const std::vector<const Kernel*>& rows);

}  // namespace gemmd::bench
