// SPDX-License-Identifier: Apache-2.0
//
// Runs gemmbench on a GPU. Implemented by one of two files, for builds with or without a CUDA
// toolkit; the latter supports no GPU.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/bench/options.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

// Measures, prints and writes files. Returns false if a result was wrong or a row failed. Errors:
// FailedPrecondition if this build or machine has no such GPU; Internal if the GPU failed (after
// writing the measurements so far); those of Session::End.
absl::StatusOr<bool> RunOnGpu(const Options& options, const std::vector<const Kernel*>& rows);

}  // namespace gemmd::bench
