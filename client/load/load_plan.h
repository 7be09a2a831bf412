// SPDX-License-Identifier: Apache-2.0
//
// What a session of gemmload will do: from flags to products and steps, before any server is asked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/load/load_flags.h"
#include "client/load/load_run.h"
#include "client/load/mix.h"
#include "client/load/operand_files.h"
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

}  // namespace gemmd
