// SPDX-License-Identifier: Apache-2.0
//
// Reports as JSON, CSV, and a table on a terminal.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/gpu_measurement.h"

namespace gemmd::bench {

std::string ToJson(const GpuReport& report);

// Errors: InvalidArgument where the text is no report; the message names what is missing.
absl::StatusOr<GpuReport> ReportFromJson(std::string_view text);

// One line for each measurement, with a line of names above.
std::string ToCsv(const GpuReport& report);

std::string GpuTableHeader();
std::string GpuTableLine(const GpuMeasurement& measurement);

}  // namespace gemmd::bench
