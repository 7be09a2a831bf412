// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/connect.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/terminal/time_text.h"

namespace gemmd {

absl::StatusOr<absl::Duration> ParseTimeout(const std::string& text, const std::string& flag) {
  const absl::Duration timeout = ParseTime(text).value_or(absl::ZeroDuration());
  if (timeout > absl::ZeroDuration() && timeout < absl::InfiniteDuration()) return timeout;
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": got \"", text, "\", want a positive number of seconds or a time such as 500ms"));
}

absl::StatusOr<Client> Connect(const GlobalFlags& flags, absl::Duration default_timeout) {
  ClientOptions options;
  options.timeout = default_timeout;
  // The server's own limit decides.
  options.max_message_bytes = std::numeric_limits<int32_t>::max();
  if (!flags.timeout.empty()) {
    const auto timeout = ParseTimeout(flags.timeout);
    if (!timeout.ok()) return timeout.status();
    options.timeout = *timeout;
  }
  const absl::Status status = ApplySecurityFlags(flags.security, options);
  if (!status.ok()) return status;
  return Client::Create(flags.address, options);
}

}  // namespace gemmd
