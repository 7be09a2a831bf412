// SPDX-License-Identifier: Apache-2.0
//
// A device as the service sees it. Constant while the server runs.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "server/device/device.h"
#include "server/device/device_trust.h"

namespace gemmd {

struct ServedDevice {
  Device* device = nullptr;
  absl::Status canary;           // What became of the server's own, at the start.
  DeviceTrust* trust = nullptr;  // Null: nothing is ever held against it.

  // OK where the device can be given products now; otherwise Unavailable, with its name.
  absl::Status readiness() const;

  // The kernels that it must not be given.
  std::vector<const Kernel*> quarantined() const {
    return trust == nullptr ? std::vector<const Kernel*>() : trust->quarantined();
  }
};

}  // namespace gemmd
