// SPDX-License-Identifier: Apache-2.0
#include "client/load/slo_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
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

int64_t MinCalls(const SloObjective& objective) {
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
  if (tally.ok() < MinCalls(objective)) {
    return absl::StrCat("only ", tally.ok(), " calls, ", MinCalls(objective), " are needed");
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
  // Either latencies would be within the limit if every call had been sent on time, or enough calls
  // were late by half the limit for the server to have received bursts.
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
      MinCalls(objective), objective.text, 100 * kMaxShortfall, 100 * kMaxClientShare);
}

// Rates are tried in steps of this ratio from the first rate.
constexpr double kStep = 1.0225;
int StepsTo(double ratio) {
  return static_cast<int>(std::lround(std::log(ratio) / std::log(kStep)));
}

// The largest moves: up from a rate that holds, down from a rate that fails.
const int kMaxUp = StepsTo(2);
const int kMaxDown = StepsTo(4);
// Bisection ends at this distance of a rate that fails from one that holds. The ends of the
// interval are further away: rates near the highest one hold by chance, and decisions there
// contradict each other.
constexpr int kNarrow = 2;
constexpr int kBeside = 4;
static_assert(kNarrow + 2 * kBeside == 10);  // kStep^10 = kSloWidth.

// A rate is decided once the windows of one verdict lead by kLead; by kSureLead if the decision may
// end the search, and by kContraryLead if it contradicts the bisection.
constexpr int kLead = 2;
constexpr int kSureLead = 3;
constexpr int kContraryLead = 5;
// Consecutive discarded windows that show that the client is the limit.
constexpr int kSettledDiscards = 4;
// Discarded windows, before any counted, needed to give up: the objective is finer than the
// client's own precision, and at lower rates a window takes minutes.
constexpr size_t kHopelessDiscards = 3 * kSettledDiscards;

class Search {
 public:
  Search(const SloPlan& plan, const std::function<std::optional<SloWindow>(double rate)>& try_rate)
      : plan_(plan),
        try_rate_(try_rate),
        lowest_(-StepsTo(std::max(1.0, plan.first_rate))),
        highest_(StepsTo(std::max(1.0, plan.last_rate / plan.first_rate)) + 1) {}

  SloAnswer ToEnd() {
    while (!end_.has_value()) {
      IsNarrow() ? Confirm() : Bisect();
    }
    return Answer();
  }

 private:
  using End = SloAnswer::End;
  enum class Decision { kHolds, kFails, kClientLimit };

  double RateAt(double at) const {
    return std::min(plan_.first_rate * std::pow(kStep, at), plan_.last_rate);
  }

  bool IsNarrow() const { return holds_ && fails_ && *fails_ - *holds_ <= kNarrow; }

  // Tries windows until those that hold lead by `to_hold`, or those that fail by `to_fail`; nullopt
  // if the search ends. If `is_quick`, the first window suffices if it holds.
  std::optional<Decision> Decide(int at, int to_hold, int to_fail, bool is_quick = false) {
    int lead = 0;
    int discards = 0;
    for (bool is_first = true; static_cast<int>(answer_.windows.size()) < plan_.max_windows;) {
      const std::optional<SloWindow> window = try_rate_(RateAt(at));
      if (!window.has_value()) return Finish(End::kInterrupted);
      answer_.windows.push_back(*window);
      if (window->verdict == WindowVerdict::kHopeless) return Finish(End::kHopeless);
      if (window->verdict == WindowVerdict::kDiscarded) {
        const bool is_hopeless = !has_counted_ && answer_.windows.size() >= kHopelessDiscards;
        if (is_hopeless) return Finish(End::kClientLimit);
        if (++discards >= kSettledDiscards) return Decision::kClientLimit;
        continue;
      }
      has_counted_ = true;
      discards = 0;
      lead += window->verdict == WindowVerdict::kHolds ? 1 : -1;
      if (lead >= to_hold || (is_quick && is_first && lead > 0)) return Decision::kHolds;
      if (lead <= -to_fail) return Decision::kFails;
      is_first = false;
    }
    return Finish(IsNarrow() && !is_client_limit_ ? End::kFound : End::kTooNoisy);
  }

  // Tries the rate in the middle, or one beyond the rates that are decided.
  void Bisect() {
    int at = 0;
    if (holds_ && fails_) {
      at = std::midpoint(*holds_, *fails_);
    } else if (holds_) {
      at = std::min(*holds_ + kMaxUp, highest_);
    } else if (fails_) {
      at = std::max(*fails_ - kMaxDown, lowest_);
    }
    const bool is_limit = at == lowest_ || at == highest_;
    const int lead = is_limit ? kSureLead : kLead;
    Take(at, Decide(at, lead, lead, !fails_ && at != highest_));
  }

  // Tries the ends of the interval again: the machine may have been busy, or idle, for a while.
  void Confirm() {
    const int above = *fails_ + kBeside;
    if (!is_client_limit_ && above <= highest_) {
      const auto decided = Decide(above, kContraryLead, kSureLead);
      if (!decided || decided == Decision::kHolds) return Take(above, decided);
    }
    const int below = std::max(*holds_ - kBeside, lowest_);
    const auto decided = Decide(below, kSureLead, kContraryLead);
    if (decided != Decision::kHolds) return Take(below, decided);
    Finish(is_client_limit_ ? End::kClientLimit : End::kFound);
  }

  // A decision discards those that it contradicts.
  void Take(int at, std::optional<Decision> decided) {
    if (!decided) return;
    if (decided == Decision::kHolds) {
      holds_ = at;
      if (fails_ && *fails_ <= at) fails_.reset();
    } else {
      fails_ = at;
      is_client_limit_ = decided == Decision::kClientLimit;
      if (holds_ && *holds_ >= at) holds_.reset();
    }
    if (holds_ == highest_) Finish(End::kEveryRate);
    if (fails_ == lowest_) Finish(is_client_limit_ ? End::kClientLimit : End::kNoRate);
  }

  std::nullopt_t Finish(End end) {
    end_ = end;
    return std::nullopt;
  }

  SloAnswer Answer() {
    answer_.end = *end_;
    if (holds_ && end_ != End::kHopeless) answer_.rate = RateAt(*holds_);
    if (end_ == End::kFound) answer_.rate = RateAt(0.5 * (*holds_ + *fails_));
    if (end_ == End::kFound || (end_ == End::kTooNoisy && has_counted_)) {
      answer_.low = RateAt(holds_.value_or(lowest_) - kBeside);
      answer_.high = RateAt(fails_.value_or(highest_) + kBeside);
    }
    return answer_;
  }

  const SloPlan& plan_;
  const std::function<std::optional<SloWindow>(double rate)>& try_rate_;
  const int lowest_;
  const int highest_;

  SloAnswer answer_;
  std::optional<End> end_;
  std::optional<int> holds_;      // The highest rate that is known to hold.
  std::optional<int> fails_;      // The lowest rate above it that is known to fail.
  bool is_client_limit_ = false;  // Whether the client is the limit at `fails_`.
  bool has_counted_ = false;      // Whether a window was not discarded.
};

}  // namespace

double SloPlan::WindowAt(double rate, const SloObjective& objective) const {
  // Poisson arrivals fall short by five standard deviations once in three million times.
  const double calls = static_cast<double>(MinCalls(objective));
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
      "%s; windows of %.3g s (longer where too few calls would be due) begin at %g/s, and rates "
      "double while windows hold; then the interval is bisected, and a lead of %d windows decides "
      "each rate; the search ends when a rate above an interval of a factor of %.2f has failed "
      "again and one below it has held again (the highest rate is in it with a probability of "
      "%.0f %%), or after %d windows",
      WindowRule(objective), plan.window_s, plan.first_rate, kLead, kSloWidth, 100 * kSloConfidence,
      plan.max_windows);
}

}  // namespace gemmd
