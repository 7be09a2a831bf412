// SPDX-License-Identifier: Apache-2.0
#include "server/device/device.h"

namespace gemmd {

GemmArgs ArgsOf(const Job& job, const Target& target, absl::Span<std::byte> workspace) {
  return {.problem = job.problem,
          .target = target,
          .a = job.a,
          .b = job.b,
          .c = job.c,
          .bias = job.bias,
          .a_scale = job.a_scale,
          .b_scale = job.b_scale,
          .d = reinterpret_cast<std::byte*>(job.d->data()),
          .workspace = workspace};
}

}  // namespace gemmd
