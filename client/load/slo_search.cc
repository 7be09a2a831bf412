// SPDX-License-Identifier: Apache-2.0
#include "client/load/slo_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/terminal/text.h"

namespace gemmd {
namespace {

// Parses "99.9" as exactly 0.999: the quotient 99.9 / 100 would be a neighbouring number with
// another rank.
bool ParsePercentile(absl::string_view text, double& fraction) {
  const bool is_decimal = !text.empty() && text.find_first_not_of("0123456789.") == text.npos;
  return is_decimal && absl::SimpleAtod(absl::StrCat(text, "e-2"), &fraction);
}

}  // namespace

absl::StatusOr<SloObjective> ParseSlo(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  double fraction = 0;
  absl::Duration limit = absl::ZeroDuration();
  const bool is_read = absl::ParseDuration(parts.second, &limit) && parts.first.size() > 1 &&
                       parts.first[0] == 'p' && ParsePercentile(parts.first.substr(1), fraction);
  const bool is_good = is_read && fraction > 0 && fraction < 1 && limit > absl::ZeroDuration() &&
                       limit < absl::Hours(1);
  if (!is_good) {
    return absl::InvalidArgumentError(
        absl::StrCat("--slo: got \"", text, "\", want a percentile and a time, such as p99=2ms"));
  }
  return SloObjective{fraction, absl::ToInt64Nanoseconds(limit), std::string(text)};
}

int64_t LeastCalls(const SloObjective& objective) {
  // Corrects rounding of the quotient; percentiles have fewer than twelve digits.
  return std::llround(std::ceil(1 / (1 - objective.fraction) * (1 - 1e-9)));
}

namespace {

// Share of a window's calls that may end after it. So may the calls due less than the objective's
// latency before its end, and one more at the edge.
constexpr double kMaxShortfall = 0.01;

// Whether a status does not depend on the server's load.
bool IsOfAnyLoad(absl::StatusCode code) {
  constexpr std::array kCodes = {absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,
                                 absl::StatusCode::kPermissionDenied,
                                 absl::StatusCode::kUnimplemented,
                                 absl::StatusCode::kUnauthenticated};
  return std::find(kCodes.begin(), kCodes.end(), code) != kCodes.end();
}

std::string FailuresText(const StepResult& window) {
  std::string text = absl::StrCat("failed calls: ", FailedCodesText(window.tally.calls_by_code));
  if (!window.first_messages.empty()) {
    absl::StrAppend(&text, "; ", window.first_messages.begin()->second);
  }
  return text;
}

// Why no other rate would hold either; empty if another rate may.
std::string WhyHopeless(const StepResult& window, const VerifierCounts& verified) {
  if (verified.wrong > 0) {
    return absl::StrCat("wrong answers: ", verified.wrong, " of ", verified.checked, " checked");
  }
  const CallsByCode& codes = window.tally.calls_by_code;
  int64_t of_any_load = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    if (IsOfAnyLoad(static_cast<absl::StatusCode>(i))) of_any_load += codes[i];
  }
  return window.tally.ok() == 0 && of_any_load > 0 ? FailuresText(window) : "";
}

// Why the window violates the rule; empty if it does not.
std::string WhyFails(const SloObjective& objective, const StepResult& window) {
  const Tally& tally = window.tally;
  if (tally.failed() > 0) return FailuresText(window);
  if (window.unsent > 0) return absl::StrCat(FormatCount(window.unsent), " calls never sent");
  if (tally.ok() == 0) return "no call";
  const int64_t got_ns = tally.latency.ValueAt(objective.fraction);
  if (got_ns > objective.limit_ns) {
    return absl::StrCat(FormatNanoseconds(got_ns), " where ", FormatNanoseconds(objective.limit_ns),
                        " is allowed");
  }
  if (tally.ok() < LeastCalls(objective)) {
    return absl::StrCat("only ", tally.ok(), " calls, ", LeastCalls(objective), " are needed");
  }
  const double limit_s = static_cast<double>(objective.limit_ns) * 1e-9;
  const double forgiven =
      std::max(kMaxShortfall * window.offered * window.window_s, window.offered * limit_s + 1);
  if (!((window.offered - window.rate) * window.window_s <= forgiven)) {
    return absl::StrFormat("%.1f/s of %.1f/s offered", window.rate, window.offered);
  }
  return "";
}

// Why the client is at fault for a failed window; empty if it is not.
std::string WhyClient(const SloObjective& objective, const StepResult& window) {
  if (window.IsClientBusy()) {
    return absl::StrFormat("the client kept %.1f of %.3g cores busy", window.client_cores,
                           window.usable_cores);
  }
  const Tally& tally = window.tally;
  if (tally.latency.ValueAt(objective.fraction) <= objective.limit_ns) return "";
  // Either latencies would be within the limit if every call had been sent on time, or so many
  // calls were late by half the limit that the server received bursts.
  const int64_t late_ns = tally.send_error.ValueAt(objective.fraction);
  const bool would_hold = tally.punctual.ValueAt(objective.fraction) <= objective.limit_ns;
  if (!would_hold && 2 * late_ns <= objective.limit_ns) return "";
  return absl::StrCat("the client sent calls up to ", FormatNanoseconds(late_ns), " late");
}

}  // namespace

absl::string_view WindowVerdictName(WindowVerdict verdict) {
  switch (verdict) {
    case WindowVerdict::kHolds: return "holds";
    case WindowVerdict::kFails: return "fails";
    case WindowVerdict::kDiscarded: return "discarded";
    case WindowVerdict::kHopeless: return "hopeless";
  }
  return "";
}

SloWindow JudgeWindow(const SloObjective& objective, double rate, const StepResult& window,
                      const VerifierCounts& verified) {
  if (const std::string why = WhyHopeless(window, verified); !why.empty()) {
    return {rate, WindowVerdict::kHopeless, why};
  }
  const std::string why = WhyFails(objective, window);
  if (why.empty()) {
    return {rate, WindowVerdict::kHolds,
            FormatNanoseconds(window.tally.latency.ValueAt(objective.fraction))};
  }
  const std::string client = WhyClient(objective, window);
  if (client.empty()) return {rate, WindowVerdict::kFails, why};
  return {rate, WindowVerdict::kDiscarded, absl::StrCat("the client is the limit: ", client)};
}

namespace {

// The rule of JudgeWindow in words.
std::string WindowRule(const SloObjective& objective) {
  return absl::StrFormat(
      "a window holds when it has at least %d calls, the latency from the intended send meets %s, "
      "no call fails or stays unsent, no answer is wrong, and all offered calls have ended except "
      "%.0f %% or those due within the allowed latency; a window that fails because of the client "
      "(over %.0f %% of its cores busy, or calls sent late) is discarded",
      LeastCalls(objective), objective.text, 100 * kMaxShortfall, 100 * kMaxClientShare);
}

constexpr int kCellsOfStep = 4;
constexpr double kLucky = 0.02;
constexpr double kGlitches[] = {0.02, 0.1, 0.25};
// With 0.12, the share of windows that hold falls from 5/6 to 1/6 within a factor of 1.5 in rate.
constexpr double kSpreads[] = {0.015, 0.05, 0.12};

// At this distance in cells from the threshold, the outcome is certain even for the widest spread.
constexpr int kFarCells = 640;

// The probability that a window holds, for each glitch and spread, by the distance in cells of its
// rate above the threshold. Index 0 is kFarCells below the threshold.
std::vector<std::vector<double>> MakeChances() {
  std::vector<std::vector<double>> chances;
  for (const double glitch : kGlitches) {
    for (const double spread : kSpreads) {
      std::vector<double>& of_one = chances.emplace_back();
      for (int above = -kFarCells; above <= kFarCells; ++above) {
        const double ratio = above * std::log(RateBelief::kStep) / kCellsOfStep;
        of_one.push_back(kLucky + (1 - kLucky - glitch) / (1 + std::exp(ratio / spread)));
      }
    }
  }
  return chances;
}

const std::vector<std::vector<double>>& Chances() {
  static const auto& chances = *new std::vector<std::vector<double>>(MakeChances());
  return chances;
}

}  // namespace

RateBelief::RateBelief(int least, int most)
    : first_(least * kCellsOfStep),
      cells_(std::size(kGlitches) * std::size(kSpreads),
             std::vector<double>(static_cast<size_t>((most - least) * kCellsOfStep + 1), 1.0)) {}

void RateBelief::Add(int at, bool holds) {
  double sum = 0;
  for (size_t i = 0; i < cells_.size(); ++i) {
    const std::vector<double>& chances = Chances()[i];
    int above = at * kCellsOfStep - first_;
    for (double& cell : cells_[i]) {
      const int index = std::clamp(above--, -kFarCells, kFarCells) + kFarCells;
      const double chance = chances[static_cast<size_t>(index)];
      cell *= holds ? chance : 1 - chance;
      sum += cell;
    }
  }
  // Normalizes, so that many windows cannot cause underflow.
  for (std::vector<double>& of_one : cells_) {
    for (double& cell : of_one) cell /= sum;
  }
}

double RateBelief::Quantile(double probability) const {
  std::vector<double> below;  // Cumulative probability by threshold.
  double sum = 0;
  for (size_t i = 0; i < cells_[0].size(); ++i) {
    for (const std::vector<double>& of_one : cells_) sum += of_one[i];
    below.push_back(sum);
  }
  const auto it = std::lower_bound(below.begin(), below.end(), probability * sum);
  const auto cell = std::min<std::ptrdiff_t>(it - below.begin(), std::ssize(below) - 1);
  return static_cast<double>(first_ + cell) / kCellsOfStep;
}

namespace {

constexpr double kStep = RateBelief::kStep;

// Steps to a rate `ratio` times as high.
int StepsTo(double ratio) {
  return static_cast<int>(std::lround(std::log(ratio) / std::log(kStep)));
}

// The largest moves of the search: up from a rate that held, down from a rate that failed.
const int kMaxUp = StepsTo(2);
const int kMaxDown = StepsTo(4);
// Distance from the interval of the final trials.
const int kBeside = StepsTo(1.12);
// Windows needed to conclude that no rate holds, or that every rate does.
constexpr int kSettled = 3;
// Consecutive discarded windows needed to conclude that the client is the limit.
constexpr int kSettledDiscards = 4;
// Discarded windows, before any counted, needed to give up: the objective is finer than the
// client's own precision, and at lower rates a window takes minutes.
constexpr int kHopelessDiscards = 3 * kSettledDiscards;
// Contradicting windows needed to discard earlier outcomes: for example, a busy machine is idle
// again.
constexpr int kContradictions = 2;
// In the last windows, the interval may have its final width, because the rates beside it must be
// tried too.
constexpr int kLastWindows = 12;

class Search {
 public:
  Search(const SloPlan& plan, const std::function<std::optional<SloWindow>(double rate)>& try_rate)
      : plan_(plan),
        try_rate_(try_rate),
        least_(-StepsTo(std::max(1.0, plan.first_rate))),
        most_(StepsTo(std::max(1.0, plan.last_rate / plan.first_rate))) {}

  SloAnswer ToEnd() {
    using End = SloAnswer::End;
    while (true) {
      if (const auto end = Ending(); end.has_value()) return Answer(*end);
      const int at = Next();
      const std::optional<SloWindow> window = try_rate_(RateAt(at));
      if (!window.has_value()) return Answer(End::kInterrupted);
      answer_.windows.push_back(*window);
      if (window->verdict == WindowVerdict::kHopeless) return Answer(End::kHopeless);
      if (window->verdict == WindowVerdict::kDiscarded) {
        if (++discards_[at] >= kSettledDiscards) ceiling_ = std::min(ceiling_, at);
        const bool is_hopeless = outcomes_.empty() && answer_.windows.size() >= kHopelessDiscards;
        if (is_hopeless) return Answer(End::kClientLimit);
      } else {
        Take(at, window->verdict == WindowVerdict::kHolds);
      }
    }
  }

 private:
  struct Outcome {
    int at;
    bool holds;
  };

  double RateAt(double at) const {
    return std::min(plan_.first_rate * std::pow(kStep, at), plan_.last_rate);
  }

  // Initially, thresholds outside the tried rates are as likely as those within.
  RateBelief NoBelief() const { return {least_ - 2 * kMaxDown, most_ + 2 * kMaxDown}; }

  int Count(int at, bool holds) const {
    return static_cast<int>(std::count_if(outcomes_.begin(), outcomes_.end(), [&](Outcome one) {
      return one.at == at && one.holds == holds;
    }));
  }

  std::optional<int> HighestHeld() const {
    std::optional<int> highest;
    for (const Outcome& one : outcomes_) {
      if (one.holds) highest = std::max(highest.value_or(one.at), one.at);
    }
    return highest;
  }

  // A rate below those at which the client is the limit: halfway from a rate that held.
  int BelowCeiling() const {
    const auto highest = HighestHeld();
    const int gap = highest.has_value() ? (ceiling_ - *highest) / 2 : kMaxDown;
    return std::max(ceiling_ - std::max(gap, kBeside), least_);
  }

  // The highest rate to try now, not far above the highest that held.
  int Top() const {
    const auto highest = HighestHeld();
    const int leap = highest.has_value() ? *highest + kMaxUp : 0;
    return std::clamp(ceiling_ > most_ ? leap : std::min(leap, BelowCeiling()), least_, most_);
  }

  int Above() const { return static_cast<int>(std::ceil(high_)) + kBeside; }

  // Whether the interval is narrow enough for the number of windows so far.
  bool IsNarrow() const {
    const int left = plan_.max_windows - static_cast<int>(answer_.windows.size());
    const double width = left > kLastWindows ? plan_.width : plan_.width_at_last;
    return std::pow(kStep, high_ - low_) <= width;
  }

  // Why the search is over; nullopt if it is not.
  std::optional<SloAnswer::End> Ending() {
    using End = SloAnswer::End;
    low_ = belief_.Quantile((1 - kSloConfidence) / 2);
    middle_ = belief_.Quantile(0.5);
    high_ = belief_.Quantile((1 + kSloConfidence) / 2);
    if (Count(most_, true) >= kSettled) return End::kEveryRate;
    const int failed = Count(least_, false);
    const auto held =
        std::count_if(outcomes_.begin(), outcomes_.end(), [](Outcome one) { return one.holds; });
    if (failed >= kSettled && held < failed) return End::kNoRate;
    const int reached = BelowCeiling();
    const bool is_reached = middle_ >= reached && Count(reached, true) >= kSettled;
    if (ceiling_ <= least_ || (ceiling_ <= most_ && is_reached)) return End::kClientLimit;
    // Rates that the client cannot send cannot be tried.
    const bool is_confirmed = (fails_above_ || ceiling_ <= Above()) && holds_below_;
    if (is_confirmed && IsNarrow()) return End::kFound;
    if (static_cast<int>(answer_.windows.size()) < plan_.max_windows) return std::nullopt;
    return End::kTooNoisy;
  }

  // The rate to try next. Once the interval is narrow, tries rates above and below it, in case the
  // search was misled.
  int Next() {
    int at = static_cast<int>(std::lround(middle_));
    probe_ = Probe::kNone;
    if (IsNarrow() && !fails_above_ && Above() < ceiling_) {
      probe_ = Probe::kAbove;
      at = Above();
    } else if (IsNarrow() && !holds_below_) {
      probe_ = Probe::kBelow;
      at = static_cast<int>(std::floor(low_)) - kBeside;
    }
    int bottom = 0;
    for (const Outcome& one : outcomes_) bottom = std::min(bottom, one.at);
    return std::min(std::max({at, bottom - kMaxDown, least_}), Top());
  }

  void Take(int at, bool holds) {
    discards_.erase(at);
    outcomes_.push_back({at, holds});
    belief_.Add(at, holds);
    if (probe_ == Probe::kNone) return;
    const bool is_above = probe_ == Probe::kAbove;
    bool& is_confirmed = is_above ? fails_above_ : holds_below_;
    int& contradictions = is_above ? held_above_ : failed_below_;
    if (holds != is_above) {
      is_confirmed = true;
      contradictions = 0;
    } else if (++contradictions >= kContradictions) {
      Forget(at, holds);
    }
  }

  // Drops outcomes that later ones contradict: failures at rates that now hold, or the reverse.
  void Forget(int at, bool holds) {
    std::erase_if(outcomes_, [&](Outcome one) {
      return one.holds != holds && (holds ? one.at <= at : one.at >= at);
    });
    belief_ = NoBelief();
    for (const Outcome& one : outcomes_) belief_.Add(one.at, one.holds);
    fails_above_ = holds_below_ = false;
    held_above_ = failed_below_ = 0;
  }

  SloAnswer Answer(SloAnswer::End end) {
    using End = SloAnswer::End;
    answer_.end = end;
    for (const Outcome& one : outcomes_) {
      if (Count(one.at, true) < std::max(1, Count(one.at, false))) continue;
      answer_.rate = std::max(answer_.rate, RateAt(one.at));
    }
    if (end == End::kNoRate || end == End::kHopeless) answer_.rate = 0;
    if (end == End::kFound) answer_.rate = RateAt(middle_);
    if (end == End::kFound || (end == End::kTooNoisy && !outcomes_.empty())) {
      answer_.low = RateAt(low_);
      answer_.high = RateAt(high_);
    }
    return answer_;
  }

  enum class Probe { kNone, kAbove, kBelow };

  const SloPlan& plan_;
  const std::function<std::optional<SloWindow>(double rate)>& try_rate_;
  const int least_;
  const int most_;

  SloAnswer answer_;
  std::vector<Outcome> outcomes_;  // Outcomes of the windows that count.
  RateBelief belief_ = NoBelief();
  double low_ = 0;
  double middle_ = 0;
  double high_ = 0;
  std::map<int, int>
      discards_;  // Discarded windows by rate, since the last counted window at that rate.
  int ceiling_ = most_ + 1;  // From this rate on, the client is the limit.
  Probe probe_ = Probe::kNone;
  bool fails_above_ = false;
  bool holds_below_ = false;
  int held_above_ = 0;
  int failed_below_ = 0;
};

}  // namespace

double SloPlan::WindowAt(double rate, const SloObjective& objective) const {
  // Poisson arrivals fall short by five standard deviations once in three million times.
  const double calls = static_cast<double>(LeastCalls(objective));
  return std::max(window_s, (calls + 5 * std::sqrt(calls)) / rate);
}

int64_t SloAnswer::discarded() const {
  return std::count_if(windows.begin(), windows.end(), [](const SloWindow& window) {
    return window.verdict == WindowVerdict::kDiscarded;
  });
}

SloAnswer SearchRate(const SloPlan& plan,
                     const std::function<std::optional<SloWindow>(double rate)>& try_rate) {
  return Search(plan, try_rate).ToEnd();
}

std::string SloRule(const SloObjective& objective, const SloPlan& plan) {
  return absl::StrFormat(
      "%s; windows of %.3g s (longer where too few calls would be due) begin at %g/s and at most "
      "double, and each next window uses the median of the rates that remain possible (QUEST: a "
      "window that fails by chance costs further windows, not the result); the search ends when "
      "the 95 %% interval is within a factor of %.2f, or of %.2f in the last %d windows, a rate "
      "above it has failed again and one below it has held again, or after %d windows",
      WindowRule(objective), plan.window_s, plan.first_rate, plan.width, plan.width_at_last,
      kLastWindows, plan.max_windows);
}

}  // namespace gemmd
