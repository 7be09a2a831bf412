// SPDX-License-Identifier: Apache-2.0
//
// How fast the kernels of this host are.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device_profile.h"

namespace gemmd {

// The costs of launches on the target (host_costs.h), and the rate of every engine that it has,
// measured with small products on the calling thread alone; rates are multiplied by the number of
// threads that SetThreads gave it. Takes some tens of milliseconds for each engine.
DeviceProfile MeasureRates(const Target& target);

// What MeasureRates gave as plain numbers, for another process with the same catalogue.
std::vector<double> NumbersOf(const DeviceProfile& profile);
// Errors: InvalidArgument where they are not such numbers.
absl::StatusOr<DeviceProfile> ProfileOf(const Target& target, absl::Span<const double> numbers);

}  // namespace gemmd
