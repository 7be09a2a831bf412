// SPDX-License-Identifier: Apache-2.0
//
// A session of gemmload: from its plan to a report.
#pragma once

#include "absl/status/statusor.h"
#include "client/load/live_metrics.h"
#include "client/load/live_view.h"
#include "client/load/load_clock.h"
#include "client/load/load_flags.h"
#include "client/load/load_plan.h"
#include "client/load/report/report.h"

namespace gemmd {

// Those who watch a load while it runs.
struct LoadWatch {
  LiveView& view;
  LiveMetrics* metrics = nullptr;  // Null: none are served.
};

// Runs all steps of the plan until the end or until a stop is asked for.
// Errors: Unavailable or DeadlineExceeded where a server cannot be reached at the beginning;
// Cancelled where a stop comes before the first step; InvalidArgument for products that cannot be
// sent.
absl::StatusOr<LoadReport> RunSession(const LoadFlags& flags, const SessionPlan& plan,
                                      const StopRequests& stop, const LoadWatch& watch);

}  // namespace gemmd
