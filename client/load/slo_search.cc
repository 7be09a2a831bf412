// SPDX-License-Identifier: Apache-2.0
#include "client/load/slo_search.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

// Share of the calls offered in a window that need not end within it. Calls that are due less than
// the objective's latency before its end, and one more at its edge, need not either.
constexpr double kMostShortfall = 0.01;

// "99.9" as 0.999: a quotient would be the next number, and of another rank.
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
  // The quotient may be a little off, which no percentile of fewer than twelve digits is.
  return std::llround(std::ceil(1 / (1 - objective.fraction) * (1 - 1e-9)));
}

double SloPlan::WindowAt(double rate, const SloObjective& objective) const {
  // Poisson arrivals are fewer by five standard deviations once in three million times.
  const double calls = static_cast<double>(LeastCalls(objective));
  return std::max(window_s, (calls + 5 * std::sqrt(calls)) / rate);
}

std::string WhyWindowFails(const SloObjective& objective, const StepResult& window,
                           const VerifierCounts& verified) {
  const Tally& tally = window.tally;
  if (verified.wrong > 0) {
    return absl::StrCat("wrong answers: ", verified.wrong, " of ", verified.checked, " checked");
  }
  if (tally.failed() > 0) return absl::StrCat("failed calls: ", CodesText(tally.calls_by_code));
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
      std::max(kMostShortfall * window.offered * window.window_s, window.offered * limit_s + 1);
  if (!((window.offered - window.rate) * window.window_s <= forgiven)) {
    return absl::StrFormat("%.1f/s of %.1f/s offered", window.rate, window.offered);
  }
  return "";
}

std::string SloRule(const SloObjective& objective, const SloPlan& plan) {
  return absl::StrFormat(
      "a rate holds when in each of %d windows of %.3g s (longer where fewer than %d calls would "
      "be "
      "due) the latency from the intended send meets %s, no call fails or stays unsent, no answer "
      "is wrong, and all that was offered has ended but for %.0f %% or what is due within the "
      "allowed latency; rates double from %g/s until one does not hold, then halve the gap until "
      "it is %.0f %%",
      plan.windows, plan.window_s, LeastCalls(objective), objective.text, 100 * kMostShortfall,
      plan.first_rate, 100 * (plan.resolution - 1));
}

std::vector<SloTrial> SearchRate(
    const SloPlan& plan, const std::function<std::optional<SloTrial>(double rate)>& try_rate) {
  std::vector<SloTrial> trials;
  double holds = 0;
  double fails = 0;  // 0: none yet.
  double rate = plan.first_rate;
  while (true) {
    const std::optional<SloTrial> trial = try_rate(rate);
    if (!trial.has_value()) return trials;
    trials.push_back(*trial);
    if (trial->is_last) return trials;
    (trial->holds ? holds : fails) = rate;
    if (fails == 0) {
      if (rate >= plan.last_rate) return trials;
      rate = std::min(2 * rate, plan.last_rate);
    } else if (holds == 0) {
      // The first rate was too high already.
      if (rate < 1) return trials;
      rate /= 4;
    } else if (fails <= holds * plan.resolution) {
      return trials;
    } else {
      rate = std::sqrt(holds * fails);
    }
  }
}

double HighestThatHolds(const std::vector<SloTrial>& trials) {
  double highest = 0;
  for (const SloTrial& trial : trials) {
    if (trial.holds) highest = std::max(highest, trial.rate);
  }
  return highest;
}

}  // namespace gemmd
