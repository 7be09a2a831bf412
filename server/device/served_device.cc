// SPDX-License-Identifier: Apache-2.0
#include "server/device/served_device.h"

#include <string>

#include "kernels/text.h"

namespace gemmd {

absl::Status ServedDevice::readiness() const {
  const absl::Status why = canary.ok() && trust != nullptr ? trust->status() : canary;
  if (why.ok()) return device->readiness();
  return absl::UnavailableError(
      Concat("device: ", device->info().name, " is not ready: ", std::string(why.message())));
}

}  // namespace gemmd
