// SPDX-License-Identifier: Apache-2.0
//
// The checks of `gemmctl doctor`: what the server reports, and a product whose exact D is known
// here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/channel.h"
#include "gemmd/client.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/incidents.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/statistics.pb.h"

namespace gemmd {

// The outcome of a check of `gemmctl doctor`.
enum class CheckState { kOk, kWarn, kFail };
absl::string_view CheckStateName(CheckState state);  // "ok", "warn", "fail".

// One check and its outcome.
struct Check {
  std::string name;  // "canary cuda:0".
  CheckState state = CheckState::kOk;
  std::string seen;
  std::string advice = {};  // What to do; empty if there is nothing to do.
};

Check CheckPlainTransport(absl::string_view address);
Check CheckTls(const absl::StatusOr<TlsPeer>& peer, absl::Time now);

Check CheckServer(const v1::GetServerInfoResponse& info, absl::string_view client_version);

// Compares the server's clock with this machine's, read before and after the server read its own.
Check CheckClock(int64_t server_unix_ns, absl::Time sent, absl::Time received);

Check CheckLimits(const v1::Limits& limits);
Check CheckLatency(std::vector<int64_t> round_trips_ns);

// Checks requests and bytes in flight, memory pressure and memory of tensors.
std::vector<Check> CheckStatistics(const v1::GetStatisticsResponse& statistics);

// Reports kernels that gave wrong answers, from the explanation of one product on each device.
Check CheckQuarantine(const std::vector<v1::ExplainResponse>& explanations);
Check CheckIncidents(const absl::StatusOr<v1::ListIncidentsResponse>& incidents);

// A product of small odd f16 integers in a shape that fills no tile. Every partial sum is exact in
// the accumulator of every device, so D does not depend on the order of summation.
struct Canary {
  explicit Canary(uint64_t seed);

  v1::MultiplyRequest request;  // Without a device.
  std::vector<uint64_t> want;   // The bits of D's elements, row after row.
};

// What is wrong with an answer to the canary; empty if it is right.
std::string FaultOf(const Canary& canary, const v1::MultiplyResponse& answer);

}  // namespace gemmd
