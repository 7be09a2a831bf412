// SPDX-License-Identifier: Apache-2.0
//
// The checks of `gemmctl doctor`: the words of the server, and a product whose D is known here to
// the bit.
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

// What `gemmctl doctor` found, for people and for programs.
enum class CheckState { kOk, kWarn, kFail };
absl::string_view CheckStateName(CheckState state);  // "ok", "warn", "fail".

// One thing that was looked at.
struct Check {
  std::string name;  // "canary cuda:0".
  CheckState state = CheckState::kOk;
  std::string seen;
  std::string advice = {};  // What to do; empty where there is nothing to do.
};

bool HasFailure(const std::vector<Check>& checks);

Check CheckPlainTransport(absl::string_view address);
Check CheckTls(const absl::StatusOr<TlsPeer>& peer, absl::Time now);

Check CheckServer(const v1::GetServerInfoResponse& info, absl::string_view client_version);

// Against the clock of this machine, which was asked before and after the server looked at its own.
Check CheckClock(int64_t server_unix_ns, absl::Time sent, absl::Time received);

Check CheckLimits(const v1::Limits& limits);
Check CheckLatency(std::vector<int64_t> round_trips_ns);

// Requests and bytes in flight, want of memory, memory of tensors.
std::vector<Check> CheckStatistics(const v1::GetStatisticsResponse& statistics);

// Kernels that gave wrong answers, as the explanations of one product on each device tell.
Check CheckQuarantine(const std::vector<v1::ExplainResponse>& explanations);
Check CheckIncidents(const absl::StatusOr<v1::ListIncidentsResponse>& incidents);

// Odd small integers of f16 in a shape that fills no tile: every partial sum fits the accumulator
// of every device, so that D has one right answer, whatever the order of summation.
struct Canary {
  explicit Canary(uint64_t seed);

  v1::MultiplyRequest request;  // Without a device.
  std::vector<uint64_t> want;   // The bits of D's elements, row after row.
};

// What is wrong with an answer to the canary, or nothing.
std::string FaultOf(const Canary& canary, const v1::MultiplyResponse& answer);

}  // namespace gemmd
