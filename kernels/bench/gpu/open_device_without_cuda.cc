// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/open_device.h"

namespace gemmd::bench {

absl::StatusOr<std::unique_ptr<Device>> OpenGpu(int) {
  return absl::FailedPreconditionError(
      "--device: this gemmbench was built without a CUDA toolkit and runs nothing on GPUs");
}

}  // namespace gemmd::bench
