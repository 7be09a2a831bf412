// SPDX-License-Identifier: Apache-2.0
//
// The service gemmd.v1.Registry: kernels, devices, the kernel that would be chosen for a product,
// version and limits, counters, instructions.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/v1/registry.grpc.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/statistics.pb.h"
#include "kernels/kernel.h"
#include "kernels/select.h"
#include "server/device/device.h"
#include "server/metrics/handler_times.h"
#include "server/metrics/observer.h"
#include "server/product/product_runner.h"
#include "server/product/scheduler.h"
#include "server/system/clock.h"
#include "server/wire/calls.h"
#include "server/wire/gate.h"
#include "server/wire/listing.h"

namespace gemmd {

// The statistics of the daemon at one moment.
v1::GetStatisticsResponse ToWire(const Snapshot& snapshot, int64_t uptime_ns,
                                 int64_t started_unix_ns);

// A kernel of the catalogue, without its availability.
v1::Kernel ToWire(const Kernel& kernel);

// Whether the kernel can run on the device, and the reason if it cannot.
v1::KernelAvailability AvailabilityOn(const ServedDevice& served, const Kernel& kernel);

// The catalogue as ListKernels returns it. What it says about a device is constant once the device
// has started.
Listing ListingOfKernels(const std::vector<ServedDevice>& devices);

// Errors: InvalidArgument for a pattern that is too long.
absl::StatusOr<grpc::ByteBuffer> ListKernels(const Listing& kernels,
                                             const v1::ListKernelsRequest& request);

v1::Device ToWire(const ServedDevice& served, const DeviceLoad& load);

// Errors: ResourceExhausted if the scratch memory of the first candidate exceeds 63 bits.
absl::Status FillExplanation(const Problem& problem, const Selection& selection,
                             v1::ExplainResponse& response);

// Borrows all arguments. `limits` is what GetServerInfo reports.
std::unique_ptr<grpc::Service> MakeRegistryService(const std::vector<ServedDevice>& devices,
                                                   const ServiceParts& parts,
                                                   const Observer& observer, v1::Limits limits);

}  // namespace gemmd
