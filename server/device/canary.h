// SPDX-License-Identifier: Apache-2.0
//
// A product with a known answer: a device that gets it wrong is not ready.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// Such a product for one kernel of a device, to be submitted by whoever shares the device.
struct CanaryProduct {
  Job job;  // Borrows the rest.
  std::string a;
  std::string b;
  SourcePieces pieces;

  // Errors: DataLoss where D is wrong.
  absl::Status Check(absl::Span<const std::byte> d) const;
};

// Errors: Unimplemented where the kernel takes no such product.
absl::StatusOr<std::unique_ptr<CanaryProduct>> MakeCanary(const Kernel& kernel);

}  // namespace gemmd
