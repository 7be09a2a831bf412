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
                             const ProductRunner& runner, Product& product) {
  if (grant.is_low_priority) product.priority = Priority::kLow;
  if (grant.devices.empty() || grant.MayUse(product.wanted_device)) return absl::OkStatus();
  std::string first;
  for (const ServedDevice& served : devices) {
    const std::string& name = served.device->info().name;
    if (!product.wanted_device.empty() || !grant.MayUse(name)) continue;
    if (first.empty()) first = name;
    product.wanted_device = name;
    const absl::StatusOr<ProductRunner::Placement> place = runner.FindPlace(product);
    if (place.ok() && place->kernel != nullptr) return absl::OkStatus();
    product.wanted_device.clear();
  }
  product.wanted_device = first;  // It says best why it has no kernel.
  if (!first.empty()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      Concat("device: got one that the rules do not allow to this caller, want one of ",
             absl::StrJoin(grant.devices, ", ")));
}

absl::Status EnterMeter(const Identity& identity, Product& product, int64_t now_ns) {
  int64_t retry_after_ns = 0;
  absl::StatusOr<Meter::Entry> entry = identity.meter->Enter(
      identity.grant.in_flight, product.room_bytes, product.expected_ns, now_ns, &retry_after_ns);
  if (!entry.ok()) {
    return WithRetryAfterMs(entry.status(), RetryMs(std::max(retry_after_ns, product.expected_ns)));
  }
  product.entry = *std::move(entry);
  return absl::OkStatus();
}

void CountRefusal(const Arrival& arrival) {
  if (arrival.caller != nullptr && arrival.caller->use != nullptr) {
    arrival.caller->use->AddRefusal();
  }
}

void CountEnd(Product& product) {
  const Identity* const caller = product.arrival.caller.get();
  if (caller == nullptr) return;
  const bool is_ok = product.outcome.status.ok();
  const int64_t compute_ns = product.timing[Stage::kCompute];
  if (is_ok) {
    // Several that ran as one all took the time of the whole, so that the caller would pay it anew
    // for each of them.
    const int64_t most_ns =
        2 * std::min(product.expected_ns, std::numeric_limits<int64_t>::max() / 2);
    product.entry.Took(std::min(compute_ns, most_ns));
  }
  if (caller->use == nullptr) return;
  if (!is_ok) return caller->use->AddFailure();
  caller->use->AddAnswer(compute_ns / std::max<int64_t>(product.joined, 1));
}

}  // namespace gemmd
