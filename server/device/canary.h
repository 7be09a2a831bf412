// SPDX-License-Identifier: Apache-2.0
//
// A product with a known answer: a device that gets it wrong is not ready.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/device/device.h"

namespace gemmd {

// Runs small products of exact integers through the device, one per accumulation type that its
// kernels have, and compares every bit with sums made here in 64-bit integers.
//
// Errors: DataLoss for a wrong product, DeadlineExceeded where the device does not answer in time
// (the device must then not be destroyed before it has answered), otherwise the device's own
// status. Threads: blocks; nothing else may use the device meanwhile.
absl::Status RunCanary(Device& device, absl::Duration timeout);

}  // namespace gemmd
