// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/caller_rules.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_join.h"
#include "kernels/text.h"
#include "server/scheduling/time_rule.h"

namespace gemmd {

absl::Status CheckMessage(int64_t bytes, const Arrival& arrival) {
  if (arrival.caller == nullptr || bytes <= arrival.caller->grant.message_bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(Concat("request: got ", bytes,
                                             " bytes, the caller's rules allow ",
                                             arrival.caller->grant.message_bytes));
}

absl::Status RestrictToGrant(const Grant& grant, const std::vector<ServedDevice>& devices,
                             const ProductRunner& runner, ParsedRequest& parsed) {
  if (grant.is_low_priority) parsed.priority = Priority::kLow;
  if (grant.devices.empty() || grant.MayUse(parsed.device)) return absl::OkStatus();
  std::string first;
  for (const ServedDevice& served : devices) {
    const std::string& name = served.device->info().name;
    if (!parsed.device.empty() || !grant.MayUse(name)) continue;
    if (first.empty()) first = name;
    parsed.device = name;
    const absl::StatusOr<ProductRunner::Placement> place = runner.FindPlace(parsed);
    if (place.ok() && place->kernel != nullptr) return absl::OkStatus();
    parsed.device.clear();
  }
  parsed.device = first;  // It says best why it has no kernel.
  if (!first.empty()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      Concat("device: got one that the rules do not allow to this caller, want one of ",
             absl::StrJoin(grant.devices, ", ")));
}

absl::Status EnterMeter(const Identity& identity, const PreparedProduct& product, int64_t now_ns,
                        ProductCaller& caller) {
  int64_t retry_after_ns = 0;
  absl::StatusOr<Meter::Entry> entry = identity.meter->Enter(
      identity.grant.in_flight, product.bytes, product.expected_ns, now_ns, &retry_after_ns);
  if (!entry.ok()) {
    return WithRetryAfterMs(entry.status(), RetryMs(std::max(retry_after_ns, product.expected_ns)));
  }
  // Several that ran as one all took the time of the whole, so that the caller would pay it anew
  // for each of them.
  const int64_t most_ns =
      2 * std::min(product.expected_ns, std::numeric_limits<int64_t>::max() / 2);
  caller.done = [entry = *std::move(entry), most_ns,
                 done = std::move(caller.done)](ProductOutcome outcome) mutable {
    if (outcome.status.ok()) entry.Took(std::min(outcome.timing[Stage::kCompute], most_ns));
    std::move(done)(std::move(outcome));
  };
  return absl::OkStatus();
}

void CountRefusal(const Arrival& arrival) {
  if (arrival.caller != nullptr && arrival.caller->use != nullptr) {
    arrival.caller->use->AddRefusal();
  }
}

void CountEnd(const Arrival& arrival, const ProductOutcome& outcome, int64_t joined) {
  if (arrival.caller == nullptr || arrival.caller->use == nullptr) return;
  if (!outcome.status.ok()) return arrival.caller->use->AddFailure();
  arrival.caller->use->AddAnswer(outcome.timing[Stage::kCompute] / std::max<int64_t>(joined, 1));
}

}  // namespace gemmd
