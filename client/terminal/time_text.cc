// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/time_text.h"

#include "absl/strings/numbers.h"

namespace gemmd {

std::optional<absl::Duration> ParseTime(absl::string_view text) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) return absl::Seconds(seconds);
  absl::Duration time = absl::ZeroDuration();
  if (absl::ParseDuration(text, &time)) return time;
  return std::nullopt;
}

}  // namespace gemmd
