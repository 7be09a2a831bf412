// SPDX-License-Identifier: Apache-2.0
//
// The search for the highest rate that a server keeps up with under a latency objective.
//
// One window proves little: a stall of the machine makes a good rate fail. So the search doubles
// the rate while windows hold, then bisects, and a majority of windows decides each rate. It ends
// once a rate above the interval has failed again and a rate below it has held again: if the
// machine was busy at first, the search continues from there.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/recorder.h"
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

// The minimum number of calls for which the percentile is not just the maximum.
int64_t MinCalls(const SloObjective& objective);

// The verdict of one window on a latency objective.
enum class WindowVerdict {
  kHolds,
  kFails,
  kDiscarded,  // The window fails because of the client: it proves nothing about the server.
  kHopeless,   // Wrong answers, or failures at any rate.
};
absl::string_view WindowVerdictName(WindowVerdict verdict);  // "holds"

// One window of a search.
struct SloWindow {
  double rate = 0;
  WindowVerdict verdict = WindowVerdict::kFails;
  std::string what = {};  // How well the window holds, or why it does not.
};

// A window that holds counts even if the client was the limit: latencies count from the intended
// send, so a late client only makes them longer.
SloWindow JudgeWindow(const SloObjective& objective, double rate, const StepResult& window,
                      const VerifierCounts& verified);

struct SloPlan {
  double first_rate = 100;
  double last_rate = 10e6;  // The highest rate to try.
  int max_windows = 60;
  double window_s = 10.0 / 3;

  // The length of a window, so that enough calls are due for any arrivals.
  double WindowAt(double rate, const SloObjective& objective) const;
};

inline constexpr double kSloConfidence = 0.95;
inline constexpr double kSloWidth = 1.25;  // The ratio of the ends of an interval that was found.

struct SloAnswer {
  enum class End {
    kFound,
    kEveryRate,    // Even the last rate holds.
    kNoRate,       // Not even one call per second holds, or the initial rate if that is lower.
    kHopeless,     // A window was hopeless.
    kClientLimit,  // Above `rate` the client is the limit.
    kTooNoisy,     // The windows contradict each other, so the interval stays wide.
    kInterrupted,
  };
  End end = End::kInterrupted;
  // If a rate was found: the middle of the interval. Otherwise the highest rate that holds; 0 if
  // there is none.
  double rate = 0;
  // The highest rate lies between these with the probability kSloConfidence; both 0 if unknown.
  double low = 0;
  double high = 0;
  std::vector<SloWindow> windows = {};  // In order.

  bool is_conclusive() const {
    return end != End::kClientLimit && end != End::kTooNoisy && end != End::kInterrupted;
  }
  int64_t discarded() const;
};

// Tries rates until the search ends, or until a window returns nullopt.
SloAnswer SearchRate(const SloPlan& plan,
                     const std::function<std::optional<SloWindow>(double rate)>& try_rate);

// The search in words, for the report.
std::string SloRule(const SloObjective& objective, const SloPlan& plan);

}  // namespace gemmd
