// SPDX-License-Identifier: Apache-2.0
//
// What one window of a load says about a latency objective.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "client/load/slo_objective.h"
#include "client/load/step_result.h"
#include "client/load/verifier.h"

namespace gemmd {

enum class WindowVerdict {
  kHolds,
  kFails,
  kDiscarded,  // It fails, and the client is the limit: it says nothing about the server.
  kHopeless,   // Wrong answers, or failures that no other rate would mend.
};
absl::string_view WindowVerdictName(WindowVerdict verdict);  // "holds"

// One window of a search.
struct SloWindow {
  double rate = 0;
  WindowVerdict verdict = WindowVerdict::kFails;
  std::string what = {};  // How well it holds, or why it does not.
};

// A window in which the client is the limit counts where it holds all the same: latencies count
// from the intended send, so that a client that is late makes them longer, never shorter.
SloWindow JudgeWindow(const SloObjective& objective, double rate, const StepResult& window,
                      const VerifierCounts& verified);

// What JudgeWindow asks of a window, in words.
std::string WindowRule(const SloObjective& objective);

}  // namespace gemmd
