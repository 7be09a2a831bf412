// SPDX-License-Identifier: Apache-2.0
//
// Kernels, devices and choices as the wire shows them.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/v1/registry.pb.h"
#include "kernels/kernel.h"
#include "kernels/select.h"
#include "server/device/device.h"
#include "server/scheduling/scheduler.h"
#include "server/wire/listing.h"

namespace gemmd {

// A kernel of the catalogue, without availability.
v1::Kernel ToWire(const Kernel& kernel);

// Whether the kernel can run on the device, and why not.
v1::KernelAvailability AvailabilityOn(const ServedDevice& served, const Kernel& kernel);

// The catalogue as ListKernels gives it. A device's part in it is constant once it has started.
Listing ListingOfKernels(const std::vector<ServedDevice>& devices);

// Errors: InvalidArgument for a pattern that is too long.
absl::StatusOr<grpc::ByteBuffer> ListKernels(const Listing& kernels,
                                             const v1::ListKernelsRequest& request);

v1::Device ToWire(const ServedDevice& served, const DeviceLoad& load);

// Errors: ResourceExhausted where the scratch memory of the first candidate leaves 63 bits.
absl::Status FillExplanation(const Problem& problem, const Selection& selection,
                             v1::ExplainResponse& response);

}  // namespace gemmd
