// SPDX-License-Identifier: Apache-2.0
//
// What every family asks of a problem's types.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"

namespace gemmd {

// OK where A and B have the kernel's types and its accumulation is as precise as asked for.
// Errors: Unimplemented: field, got, want.
absl::Status SupportsTypes(const Kernel& kernel, const Problem& problem);

}  // namespace gemmd
