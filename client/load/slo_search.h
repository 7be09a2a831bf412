// SPDX-License-Identifier: Apache-2.0
//
// The search for the highest rate that a server keeps up with under a latency objective.
//
// One window says little: a stall of the machine makes a good rate fail. So no rate is given up
// after one window; the search keeps a belief about the highest rate (RateBelief), tries the
// rate in its middle next, and ends when the belief is narrow and a rate above it was seen to fail
// and one below it to hold after that.
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

// Calls without which the percentile would only be the longest of them.
int64_t LeastCalls(const SloObjective& objective);

// What one window of a load says about a latency objective.
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

// What windows that hold and windows that fail say about the highest rate that holds.
//
// Near that rate a window holds by chance, the less the higher its rate is; far below it a window
// still fails now and then, because something else had the machine; far above it hardly any holds.
// So the outcome of a window at rate r is taken as a draw with the probability
//
//   P(holds) = lucky + (1 - lucky - glitch) / (1 + (r / threshold)^(1 / spread))
//
// and the belief is the posterior of the threshold: over a grid of logarithms of rates, with each
// of a few values of `glitch` and `spread` beside it, which are as unknown. The method is that of
// Watson and Pelli (QUEST, 1983), with the nuisance parameters of Kontsevich and Tyler (1999).
class RateBelief {
 public:
  // Rates are counted in steps of a ratio, kStep, from any rate that the caller likes. The
  // threshold may be anywhere from `least` to `most` to begin with. Precondition: least < most.
  static constexpr double kStep = 1.04;
  RateBelief(int least, int most);

  void Add(int at, bool holds);

  // The threshold, in steps, below which it lies with that probability.
  double Quantile(double probability) const;

 private:
  int first_;  // The threshold of the first cell, in quarters of steps.
  std::vector<std::vector<double>> cells_;  // For each glitch and spread, by threshold.
};

struct SloPlan {
  double first_rate = 100;
  double last_rate = 10e6;  // No rate above is tried.
  double width = 1.18;      // The search ends where the ends of the interval are this close.
  int max_windows = 60;
  double width_at_last = 1.25;  // In the last of them, the interval may be so wide.
  double window_s = 10.0 / 3;

  // So long that enough calls are due, whatever the arrivals.
  double WindowAt(double rate, const SloObjective& objective) const;
};

inline constexpr double kSloConfidence = 0.95;

struct SloAnswer {
  enum class End {
    kFound,
    kEveryRate,    // Even the last rate holds.
    kNoRate,       // Not even one call a second holds, or the rate to begin with where it is less.
    kHopeless,     // A window was.
    kClientLimit,  // Above `rate` the client is the limit.
    kTooNoisy,     // The windows contradict each other so much that the interval stays wide.
    kInterrupted,
  };
  End end = End::kInterrupted;
  // Where one was found: at which an undisturbed window holds as often as not. Otherwise the
  // highest at which windows held at least as often as they failed; 0 where none did.
  double rate = 0;
  // The highest rate lies between these with the probability kSloConfidence; both 0 where nothing
  // is known.
  double low = 0;
  double high = 0;
  std::vector<SloWindow> windows = {};  // In order.

  bool is_conclusive() const {
    return end != End::kClientLimit && end != End::kTooNoisy && end != End::kInterrupted;
  }
  int64_t discarded() const;
};

// Tries rates until the search ends, or until a window says to stop (nullopt).
SloAnswer SearchRate(const SloPlan& plan,
                     const std::function<std::optional<SloWindow>(double rate)>& try_rate);

// The search in words, for the report.
std::string SloRule(const SloObjective& objective, const SloPlan& plan);

}  // namespace gemmd
