// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/observer.h"

namespace gemmd {

std::vector<RefusalCount> RefusalCounts(const Snapshot& snapshot) {
  std::vector<RefusalCount> counts = {
      {"queue_requests", snapshot.admission.refused_for_requests},
      {"queue_bytes", snapshot.admission.refused_for_bytes},
      {"draining", snapshot.admission.refused_when_closed},
      {"memory", snapshot.admission.refused_for_memory},
  };
  for (size_t i = 0; i < kRefusalReasons; ++i) {
    counts.push_back({NameOf(static_cast<RefusalReason>(i)), snapshot.refusals[i]});
  }
  return counts;
}

Snapshot Observer::Observe() const {
  Snapshot snapshot;
  snapshot.admission = admission_.load();
  snapshot.limits = admission_.limits();
  snapshot.is_draining = is_draining();
  snapshot.refusals = stats_.refusals();
  snapshot.silent_calls = stats_.silent_calls();
  snapshot.kernels = stats_.kernels();
  add_(snapshot);
  for (size_t i = 0; i < kVerifyModes; ++i) {
    snapshot.verifications[i] = stats_.verifications(static_cast<VerifyMode>(i));
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    const ServedDevice& served = devices_[i];
    DeviceSnapshot& device = snapshot.devices.emplace_back();
    device.info = &served.device->info();
    device.is_ready = served.readiness().ok();
    device.load = scheduler_.load(*served.device);
    device.totals = stats_.device(i);
    device.condition = served.device->condition();
    ++(served.canary.ok() ? device.condition.canaries_passed : device.condition.canaries_failed);
    device.gpu = gpus_.sample(i);
  }
  return snapshot;
}

Snapshot Observer::ObserveForScrape() const {
  Snapshot snapshot = Observe();
  snapshot.kinds = stats_.kinds();
  snapshot.handlers = handlers_.Read();
  snapshot.handlers_cpu = handlers_.ReadLongestCpu();
  return snapshot;
}

}  // namespace gemmd
