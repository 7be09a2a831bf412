// SPDX-License-Identifier: Apache-2.0
//
// What the checks run kernels on: a GPU, or in tests of the checks something that stands in for
// one.
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

  // Runs the kernel on every product, one after the other; it must support their problems. Each
  // output is first as PoisonedOutput made it, and afterwards as the kernel left it. Errors: those
  // of the launch; Aborted where nothing can run any more. Threads: one call at a time.
  virtual absl::Status Run(const Kernel& kernel, absl::Span<const Product> products,
                           absl::Span<std::vector<std::byte>> outputs) = 0;
};

}  // namespace gemmd
