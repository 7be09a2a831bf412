// SPDX-License-Identifier: Apache-2.0
//
// A device as the service sees it. Constant while the server runs.
#pragma once

#include "absl/status/status.h"
#include "server/device/device.h"

namespace gemmd {

struct ServedDevice {
  Device* device = nullptr;
  absl::Status canary;  // What became of the server's own, at the start.

  // OK where the device can be given products now; otherwise Unavailable, with its name.
  absl::Status readiness() const;
};

}  // namespace gemmd
