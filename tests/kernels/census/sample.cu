// SPDX-License-Identifier: Apache-2.0
//
// The code of the sampled rows.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/row_table.h"
#include "tests/kernels/census/sample.h"

namespace gemmd {

inline constexpr auto kSampledRows = CollectRows([](const auto& add) {
  for (const CudaRow& row : kCudaRows) {
    if (IsSampled(row)) add(row);
  }
});

std::span<const CudaFunction> FunctionsOfSample() { return FunctionsOfRows<kSampledRows>(); }

}  // namespace gemmd
