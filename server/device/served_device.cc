// SPDX-License-Identifier: Apache-2.0
#include "server/device/served_device.h"

#include <string>

#include "kernels/text.h"

namespace gemmd {

absl::Status ServedDevice::readiness() const {
  if (canary.ok()) return device->readiness();
  return absl::UnavailableError(
      Concat("device: ", device->info().name, " is not ready: ", std::string(canary.message())));
}

}  // namespace gemmd
