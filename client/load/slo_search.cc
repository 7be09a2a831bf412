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
#include "client/gemmctl/text_table.h"

namespace gemmd {
namespace {

// Of the calls offered in a window, those that must end within it.
constexpr double kLeastShare = 0.99;

}  // namespace

absl::StatusOr<SloObjective> ParseSlo(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  double percentile = 0;
  absl::Duration limit = absl::ZeroDuration();
  const bool is_read = absl::ParseDuration(parts.second, &limit) && parts.first.size() > 1 &&
                       parts.first[0] == 'p' &&
                       absl::SimpleAtod(parts.first.substr(1), &percentile);
  const bool is_good = is_read && percentile > 0 && percentile < 100 &&
                       limit > absl::ZeroDuration() && limit < absl::Hours(1);
  if (!is_good) {
    return absl::InvalidArgumentError(
        absl::StrCat("--slo: got \"", text, "\", want a percentile and a time, such as p99=2ms"));
  }
  return SloObjective{percentile / 100, absl::ToInt64Nanoseconds(limit), std::string(text)};
}

std::string WhyWindowFails(const SloObjective& objective, const StepResult& window) {
  const Tally& tally = window.tally;
  if (tally.failed() > 0) return absl::StrCat("failed calls: ", CodesText(tally.calls_by_code));
  if (window.unsent > 0) return absl::StrCat(FormatCount(window.unsent), " calls never sent");
  if (tally.ok() == 0) return "no call";
  const int64_t got_ns = tally.latency.ValueAt(objective.fraction);
  if (got_ns > objective.limit_ns) {
    return absl::StrCat(FormatNanoseconds(got_ns), " where ", FormatNanoseconds(objective.limit_ns),
                        " is allowed");
  }
  if (!(window.rate >= kLeastShare * window.offered)) {
    return absl::StrFormat("%.1f/s of %.1f/s offered", window.rate, window.offered);
  }
  return "";
}

std::string SloRule(const SloObjective& objective, const SloPlan& plan, double window_s) {
  return absl::StrFormat(
      "a rate holds when in each of %d windows of %.3g s the latency from the intended send meets "
      "%s, no call fails or stays unsent, and %.0f %% of what was offered has ended; rates double "
      "from %g/s until one does not hold, then halve the gap until it is %.0f %%",
      plan.windows, window_s, objective.text, 100 * kLeastShare, plan.first_rate,
      100 * (plan.resolution - 1));
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
