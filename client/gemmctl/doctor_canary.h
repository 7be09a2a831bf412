// SPDX-License-Identifier: Apache-2.0
//
// The product that `gemmctl doctor` gives each device: its D is known here to the bit.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "client/gemmctl/doctor_report.h"
#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/registry.pb.h"

namespace gemmd {

// Odd small integers of f16 in a shape that fills no tile: every partial sum fits the accumulator
// of every device, so that D has one right answer, whatever the order of summation.
struct Canary {
  explicit Canary(uint64_t seed);

  v1::MultiplyRequest request;  // Without a device.
  std::vector<uint64_t> want;   // The bits of D's elements, row after row.
};

// What is wrong with an answer to the canary, or nothing.
std::string FaultOf(const Canary& canary, const v1::MultiplyResponse& answer);

// How each device that is ready would run the canary. Errors: the server's own.
absl::StatusOr<std::vector<v1::ExplainResponse>> ExplainCanary(
    Client& client, const v1::ListDevicesResponse& devices, absl::Time deadline);

// Gives all of `devices` the canary at once and waits for the answers, until `deadline`: a device
// that hangs holds up no other one. A device that is not ready is a failure by itself.
std::vector<Check> CheckDevices(Client& client, const v1::ListDevicesResponse& devices,
                                uint64_t seed, absl::Time deadline);

}  // namespace gemmd
