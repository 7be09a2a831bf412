// SPDX-License-Identifier: Apache-2.0
#include "client/load/slo_objective.h"

#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

namespace gemmd {
namespace {

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

}  // namespace gemmd
