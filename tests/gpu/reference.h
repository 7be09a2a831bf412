// SPDX-License-Identifier: Apache-2.0
//
// What a kernel must compute: the simulator's result.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/mma/chip.h"
#include "tests/gpu/product.h"

namespace gemmd {

// The outputs of products of a case (cases.h), as PoisonedOutput makes them and a kernel fills
// them. The first product is simulated, and its elements are those of the others.
// Errors: as the simulator's launch.
absl::StatusOr<std::vector<std::vector<std::byte>>> ExpectedOutputs(
    const Kernel& kernel, mma::Chip chip, absl::Span<const Product> products);

// Simulates one product of a kernel with an instruction.
absl::Status Simulate(const Kernel& kernel, mma::Chip chip, const Product& product,
                      std::vector<std::byte>& output);

}  // namespace gemmd
