// SPDX-License-Identifier: Apache-2.0
//
// The search for the highest rate that a server keeps up with under a latency objective.
//
// One window proves little: a stall of the machine makes a good rate fail. So the search keeps a
// probability distribution of the highest rate (RateBelief) and tries its median next. It ends when
// the distribution is narrow, and after that a rate above it failed and a rate below it held.
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
int64_t LeastCalls(const SloObjective& objective);

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

// The probability distribution of the highest rate that holds, given the outcomes of windows. Near
// that rate a window holds by chance, less likely at higher rates; far below it, a window still
// fails sometimes, because other work disturbed the machine; far above it, hardly any window holds.
// So a window at rate r is modelled to hold with the probability
//
//   P(holds) = lucky + (1 - lucky - glitch) / (1 + (r / threshold)^(1 / spread))
//
// and the belief is the posterior of the threshold, over a grid of logarithms of rates times a few
// values of the unknown `glitch` and `spread`. The method is QUEST (Watson and Pelli, 1983) with
// the nuisance parameters of Kontsevich and Tyler (1999).
class RateBelief {
 public:
  // Rates are counted in steps of the ratio kStep from a rate that the caller chooses. Initially,
  // the threshold is equally likely anywhere from `least` to `most`. Precondition: least < most.
  static constexpr double kStep = 1.04;
  RateBelief(int least, int most);

  void Add(int at, bool holds);

  // The quantile of the threshold, in steps.
  double Quantile(double probability) const;

 private:
  int first_;  // The threshold of the first cell, in quarter steps.
  // Probabilities by threshold, for each glitch and spread.
  std::vector<std::vector<double>> cells_;
};

struct SloPlan {
  double first_rate = 100;
  double last_rate = 10e6;  // The highest rate to try.
  double width = 1.18;  // The search ends once the ratio of the interval's ends is at most this.
  int max_windows = 60;
  double width_at_last = 1.25;  // The allowed ratio in the last windows.
  double window_s = 10.0 / 3;

  // The length of a window, so that enough calls are due for any arrivals.
  double WindowAt(double rate, const SloObjective& objective) const;
};

inline constexpr double kSloConfidence = 0.95;

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
  // If a rate was found: the rate at which an undisturbed window holds half the time. Otherwise the
  // highest rate at which windows held at least as often as they failed; 0 if none.
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
