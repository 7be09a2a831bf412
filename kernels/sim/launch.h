// SPDX-License-Identifier: Apache-2.0
//
// Kernels of single instructions on the simulator: Kernel's functions over kernels/sim/product.h.
#pragma once

#include "kernels/kernel.h"

namespace gemmd {

extern const KernelFamily kSimFamily;

}  // namespace gemmd
