// SPDX-License-Identifier: Apache-2.0
#include "client/load/arrivals.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/terminal/time_text.h"

namespace gemmd {

// The integral of the rate solved for time: from t + (to - from) t^2 / (2 ramp) = calls, in the
// form that does not cancel where `to` is `from` or the ramp is long.
double RateCurve::TimeOfNs(double calls) const {
  const double ramp_s = static_cast<double>(ramp_ns) * 1e-9;
  const double in_ramp = (from + to) / 2 * ramp_s;
  if (calls >= in_ramp) return (ramp_s + (calls - in_ramp) / to) * 1e9;
  const double slope = (to - from) / ramp_s;
  return 2 * calls / (from + std::sqrt(from * from + 2 * slope * calls)) * 1e9;
}

int64_t Arrivals::NextNs() {
  if (!plan_.replay_gaps_ns.empty()) {
    replay_ns_ += plan_.replay_gaps_ns[next_gap_];
    next_gap_ = (next_gap_ + 1) % plan_.replay_gaps_ns.size();
    return replay_ns_;
  }
  if (plan_.is_poisson) {
    calls_ -= std::log(random_.Unit());
  } else if (!is_first_) {
    calls_ += 1;
  }
  is_first_ = false;
  return std::llround(plan_.rate.TimeOfNs(calls_));
}

absl::StatusOr<std::vector<int64_t>> ParseGaps(absl::string_view text) {
  std::vector<int64_t> gaps;
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const absl::Duration gap = ParseTime(line).value_or(absl::InfiniteDuration());
    if (!(gap >= absl::ZeroDuration() && gap <= absl::Hours(24))) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": got \"", line,
                                                     "\", want seconds or a time such as 500us"));
    }
    gaps.push_back(absl::ToInt64Nanoseconds(gap));
  }
  if (std::none_of(gaps.begin(), gaps.end(), [](int64_t gap) { return gap > 0; })) {
    return absl::InvalidArgumentError("got no gap above 0, want one a line");
  }
  return gaps;
}

}  // namespace gemmd
