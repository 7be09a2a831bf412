// SPDX-License-Identifier: Apache-2.0
//
// What a device can do, and how fast it was when that was measured. A profile knows no family of
// kernels: each family takes what it needs from these numbers (KernelFamily::predicted_seconds).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/host_costs.h"
#include "kernels/kernel.h"

namespace gemmd {

// A measured rate of one engine on one device.
struct EngineRate {
  std::string engine;            // Kernel::engine.
  double operations_per_second;  // 2*m*n*k over the seconds it took.
};

struct DeviceProfile {
  Target target;
  std::vector<EngineRate> rates;
  // Operations a second of each kernel of Catalog(target.kind), by Kernel::position; 0 for a kernel
  // that was not measured. Empty if only engines are measured.
  std::vector<double> kernel_rates = {};
  double converted_elements_per_second = 1e9;  // Widening an operand or finishing an output.
  // What products cost on this host; null: not measured, and for devices that are not of the host.
  std::shared_ptr<const HostCosts> host = nullptr;
  double memory_bytes_per_second = 0;  // The device's own memory; 0: unknown, counts as endless.
  double copied_bytes_per_second = 0;  // Between host and device; 0: operands are not copied.
};

}  // namespace gemmd
