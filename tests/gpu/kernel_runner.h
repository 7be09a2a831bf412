// SPDX-License-Identifier: Apache-2.0
//
// What the checks run kernels on: a GPU, and in tests of the checks something that stands for one.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "tests/gpu/product.h"

namespace gemmd {

class KernelRunner {
 public:
  virtual ~KernelRunner() = default;

  // Whether this build has the code of the kernel.
  virtual bool HasCode(const Kernel& kernel) const = 0;

  // Runs the kernel on every product, whose problem it supports, one after the other. Each
  // output is as PoisonedOutput made it before, and as the kernel left it after.
  // Errors:  as the launch says; Aborted where nothing can be run any more.
  // Threads: one call at a time.
  virtual absl::Status Run(const Kernel& kernel, absl::Span<const Product> products,
                           absl::Span<std::vector<std::byte>> outputs) = 0;
};

}  // namespace gemmd
