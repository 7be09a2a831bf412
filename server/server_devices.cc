// SPDX-License-Identifier: Apache-2.0
//
// What the server makes sure of before it serves: that its devices compute, and how fast.
#include <algorithm>
#include <string>

#include "kernels/catalog.h"
#include "kernels/select.h"
#include "server/device/device.h"
#include "server/server.h"
#include "server/system/log.h"

namespace gemmd {
namespace {

// Kernels without a measured rate are chosen by a guess: whoever runs the daemon should know.
void LogUnmeasured(const std::string& device, const DeviceProfile& profile) {
  size_t available = 0;
  size_t unmeasured = 0;
  for (const Kernel& kernel : Catalog(profile.target.kind)) {
    if (!kernel.available(profile.target).ok()) continue;
    ++available;
    if (!HasRate(kernel, profile)) ++unmeasured;
  }
  if (unmeasured == 0) return;
  spdlog::warn("event=rates_missing device={} kernels={} of={}", LogValue(device), unmeasured,
               available);
}

void LogConfinement(const DeviceInfo& info) {
  if (!info.is_confined) return;
  spdlog::info("event=worker_confined device={} by={}", LogValue(info.name),
               LogValue(info.confinement));
  if (info.unconfined.empty()) return;
  spdlog::warn("event=confinement_missing device={} reason={}", LogValue(info.name),
               LogValue(info.unconfined));
}

}  // namespace

absl::Status Server::CheckDevices(absl::Duration timeout) {
  for (ServedDevice& served : served_) {
    const DeviceInfo& info = served.device->info();
    served.canary = RunCanary(*served.device, timeout);
    if (served.canary.ok()) {
      spdlog::info("event=device_ready device={} description={} threads={}", LogValue(info.name),
                   LogValue(info.description), info.threads);
      LogUnmeasured(info.name, served.device->profile());
      LogConfinement(info);
    } else {
      spdlog::error("event=device_not_ready device={} reason={}", LogValue(info.name),
                    LogValue(served.canary.ToString()));
    }
  }
  if (std::none_of(served_.begin(), served_.end(),
                   [](const auto& served) { return served.canary.ok(); })) {
    return absl::UnavailableError("devices: none is ready, see the log for each one's reason");
  }
  return absl::OkStatus();
}

}  // namespace gemmd
