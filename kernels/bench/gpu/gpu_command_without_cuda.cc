// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/gpu_command.h"

namespace gemmd::bench {

absl::StatusOr<bool> RunOnGpu(const Options&, const std::vector<const Kernel*>&) {
  return absl::FailedPreconditionError(
      "--device: this gemmbench was built without a CUDA toolkit and runs nothing on GPUs");
}

}  // namespace gemmd::bench
