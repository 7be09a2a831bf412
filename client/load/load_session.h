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
// Errors: those of MixOf.
absl::StatusOr<std::vector<NamedStep>> StepsOf(const LoadFlags& flags);

// The plan that the flags describe, made without a server.
struct SessionPlan {
  Mix mix;
  std::vector<GivenOperands> given;  // For each product of the mix.
  std::vector<NamedStep> steps;
  std::optional<SloObjective> objective = {};  // Set for a search: the step is its first trial.
};

// The whole plan. Errors: those of MixOf.
absl::StatusOr<SessionPlan> PlanSession(const LoadFlags& flags);

// Runs all steps of the plan, until the end or a stop request. Errors: Unavailable or
// DeadlineExceeded if a server cannot be reached at the start; Cancelled if stopped before the
// first step; InvalidArgument for products that cannot be sent. `metrics` may be null.
absl::StatusOr<LoadReport> RunSession(const LoadFlags& flags, const SessionPlan& plan,
                                      const StopRequests& stop, LiveView& view,
                                      LiveMetrics* metrics);

}  // namespace gemmd
