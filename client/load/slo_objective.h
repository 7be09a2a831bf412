// SPDX-License-Identifier: Apache-2.0
//
// A latency objective, and what one window of a load says about it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/step_result.h"
#include "client/load/verifier.h"

namespace gemmd {

// At most `limit_ns` at `fraction` of the latencies from the intended send.
struct SloObjective {
  double fraction = 0;
  int64_t limit_ns = 0;
  std::string text;  // "p99=2ms"
};

// Errors: InvalidArgument for anything but a percentile and a time.
absl::StatusOr<SloObjective> ParseSlo(absl::string_view text);

// Calls without which the percentile would only be the longest of them.
int64_t LeastCalls(const SloObjective& objective);

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
