// SPDX-License-Identifier: Apache-2.0
//
// A session of gemmload: from the flags to a plan of products and steps, and from that to a report.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/load/client_machine.h"
#include "client/load/live_view.h"
#include "client/load/load_command_line.h"
#include "client/load/load_run.h"
#include "client/load/mix.h"
#include "client/load/payload.h"
#include "client/load/report/report.h"
#include "client/load/slo_search.h"

namespace gemmd {

// The products that the flags ask for.
// Errors: InvalidArgument or NotFound; the message begins with the flag or the file.
absl::StatusOr<Mix> MixOf(const LoadFlags& flags);

// A step of a session with its name.
struct NamedStep {
  std::string name;
  double target = 0;
  LoadStep step = {};
};

// The steps that the flags ask for; with --slo, one trial.
// Errors: as MixOf.
absl::StatusOr<std::vector<NamedStep>> StepsOf(const LoadFlags& flags);

// What the flags ask for, known without a server.
struct SessionPlan {
  Mix mix;
  std::vector<GivenOperands> given;  // For each product of the mix.
  std::vector<NamedStep> steps;
  std::optional<SloObjective> objective = {};  // The step is the first trial of a search.
};

// The whole plan. Errors: as MixOf.
absl::StatusOr<SessionPlan> PlanSession(const LoadFlags& flags);

// Runs all steps of the plan until the end or until a stop is asked for.
// Errors: Unavailable or DeadlineExceeded where a server cannot be reached at the beginning;
// Cancelled where a stop comes before the first step; InvalidArgument for products that cannot be
// sent.
// `metrics` null: none are served.
absl::StatusOr<LoadReport> RunSession(const LoadFlags& flags, const SessionPlan& plan,
                                      const StopRequests& stop, LiveView& view,
                                      LiveMetrics* metrics);

}  // namespace gemmd
