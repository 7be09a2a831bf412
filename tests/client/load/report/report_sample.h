// SPDX-License-Identifier: Apache-2.0
//
// A report without a server: calls whose times a test chooses.
#pragma once

#include <cstdint>
#include <functional>

#include "client/load/report/report.h"

namespace gemmd {

// One step of `calls` calls in as many milliseconds; call i is due at i ms, sent 10 us later and
// answered `service_ns(i)` after that. Intervals of 100 ms.
ReportStep SampleStep(const std::string& name, int64_t calls,
                      const std::function<int64_t(int64_t call)>& service_ns);

// The service time of calls that all take 990 us.
inline int64_t Steady(int64_t /*call*/) { return 990'000; }

LoadReport SampleReport(std::vector<ReportStep> steps);

}  // namespace gemmd
