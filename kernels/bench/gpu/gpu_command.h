// SPDX-License-Identifier: Apache-2.0
//
// gemmbench on a GPU, as its options say. One of two files has this: that of builds with a CUDA
// toolkit, or that of builds without, which know no GPU.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/bench/options.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

// Measures, prints, writes files. False where a result was wrong or a row failed.
// Errors: FailedPrecondition where this build or this machine has no such GPU; Internal where it
// failed, after what was measured until then has been written; as of Session::End.
absl::StatusOr<bool> RunOnGpu(const Options& options, const std::vector<const Kernel*>& rows);

}  // namespace gemmd::bench
