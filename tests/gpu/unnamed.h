// SPDX-License-Identifier: Apache-2.0
//
// Products that name no kernel, on a GPU and on the simulator of its chip: the bits are the same,
// whatever kernels the two choose.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/mma/chip.h"
#include "tests/gpu/kernel_runner.h"

namespace gemmd {

struct UnnamedResult {
  int64_t products = 0;
  int64_t elements = 0;
  int64_t mismatches = 0;
  int64_t kernels = 0;  // The number of different kernels that the GPU chose.
  std::string first;    // The first product that differed, and how.
};

// Runs `count` random products: types that the chip has, extents up to some hundreds, any layouts
// and epilogues. Before each of them the rates of the GPU's kernels and of the simulator's are
// drawn anew, as other machines may measure them. Errors: as the runner's and the simulator's;
// Internal where one of the two has no kernel.
absl::StatusOr<UnnamedResult> CheckUnnamed(KernelRunner& runner, mma::Chip chip, int64_t count,
                                           uint64_t seed);

}  // namespace gemmd
