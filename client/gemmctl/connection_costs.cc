// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/connection_costs.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/terminal/text_table.h"

namespace gemmd {

absl::StatusOr<std::optional<ConnectionCosts>> MeasureConnection(Client& client, absl::Time start) {
  absl::Status status = client.CheckHealth().status();
  const absl::Time connected = absl::Now();
  if (status.ok()) status = client.CheckHealth().status();
  const absl::Time called = absl::Now();
  if (absl::IsDeadlineExceeded(status)) return status;
  if (!status.ok()) return std::nullopt;
  const int64_t first_ns = absl::ToInt64Nanoseconds(connected - start);
  const int64_t next_ns = absl::ToInt64Nanoseconds(called - connected);
  return ConnectionCosts{.connect_ns = std::max(int64_t{0}, first_ns - next_ns),
                         .empty_call_ns = next_ns};
}

std::string ConnectionText(const ConnectionCosts& costs) {
  return absl::StrCat("connect  ", FormatNanoseconds(costs.connect_ns), ", and ",
                      FormatNanoseconds(costs.empty_call_ns), " for an empty call");
}

}  // namespace gemmd
