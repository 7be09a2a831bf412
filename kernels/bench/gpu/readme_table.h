// SPDX-License-Identifier: Apache-2.0
//
// The README's tables of GPU kernels, from saved reports.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/gpu_measurement.h"

namespace gemmd::bench {

// Markdown: for each report where and how it was measured; of each instruction the fastest kernel
// at its largest cube; and, folded away, the fastest at every shape.
// Errors: InvalidArgument where a report has a measurement that is wrong, or none.
absl::StatusOr<std::string> ReadmeTable(const std::vector<GpuReport>& reports);

}  // namespace gemmd::bench
