// SPDX-License-Identifier: Apache-2.0
//
// What `gemmctl doctor` makes of the server's own words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/gemmctl/doctor_report.h"
#include "client/tls_peer.h"
#include "gemmd/v1/incidents.pb.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/statistics.pb.h"

namespace gemmd {

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

// A call that failed: a warning where the server has no such call or does not allow it to this
// caller, for that says nothing about the server's health.
Check FailedCheck(std::string name, const absl::Status& status);

}  // namespace gemmd
