// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rows.h"

namespace gemmd {

absl::Span<const Kernel> CpuKernels() { return kCpuRows; }

}  // namespace gemmd
