// SPDX-License-Identifier: Apache-2.0
//
// The generic tensor-core kernel of each instruction: one instruction per tile, ascending k. Names,
// recipes and limits follow from the table of instructions (kernels/mma/instructions.h). Those with
// promoted sums (kernels/promotion.h) follow after all others.
#pragma once

#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace gemmd {

absl::Span<const Kernel> SimKernels();

}  // namespace gemmd
