// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/doctor_checks.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/address.h"
#include "client/credentials.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/doctor_canary.h"
#include "client/gemmctl/doctor_service.h"
#include "client/terminal/version.h"
#include "client/tls_peer.h"

namespace gemmd {
namespace {

constexpr int kHealthChecks = 48;

// The time that is left, as each call gets it; an instant where there is none, so that it fails.
CallOptions Until(absl::Time deadline) {
  return {.timeout = std::max(deadline - absl::Now(), absl::Milliseconds(1)), .traceparent = {}};
}

// host:port of the first server that an address for gRPC names.
std::string FirstServer(absl::string_view target) {
  for (const absl::string_view scheme : {"dns:", "ipv4:", "ipv6:"}) {
    if (absl::ConsumePrefix(&target, scheme)) break;
  }
  absl::ConsumePrefix(&target, "///");
  return std::string(target.substr(0, target.find(',')));
}

Check CheckTransport(const GlobalFlags& global, absl::Time deadline) {
  const absl::string_view target = WithoutTls(global.address);
  const TlsOptions& tls = global.security.tls;
  if (!HasTls(global.address, tls)) return CheckPlainTransport(target);
  // A server that does not answer must leave time for the other checks.
  const absl::Time now = absl::Now();
  return CheckTls(LookAtTlsPeer(FirstServer(target), tls, now + (deadline - now) / 4), absl::Now());
}

Check CheckHealthOf(Client& client, absl::Time deadline) {
  const auto status = client.CheckHealth("", Until(deadline));
  if (!status.ok()) return FailedCheck("health", status.status());
  Check check = {.name = "health", .seen = std::string(ServingStatusName(*status))};
  if (*status == ServingStatus::kServing) return check;
  check.state = CheckState::kFail;
  check.advice =
      "balancers send nobody here: the default device is not ready, or the daemon drains";
  return check;
}

Check MeasureLatency(Client& client, absl::Time deadline) {
  std::vector<int64_t> round_trips_ns;
  for (int i = 0; i < kHealthChecks; ++i) {
    const absl::Time start = absl::Now();
    const auto status = client.CheckHealth("", Until(deadline));
    if (!status.ok()) return FailedCheck("latency", status.status());
    round_trips_ns.push_back(absl::ToInt64Nanoseconds(absl::Now() - start));
  }
  return CheckLatency(std::move(round_trips_ns));
}

void Append(std::vector<Check> more, std::vector<Check>& checks) {
  std::move(more.begin(), more.end(), std::back_inserter(checks));
}

}  // namespace

absl::StatusOr<std::vector<Check>> Examine(const GlobalFlags& global, absl::Time deadline) {
  auto client = Connect(global);
  if (!client.ok()) return client.status();
  std::vector<Check> checks = {CheckTransport(global, deadline)};
  const absl::Time sent = absl::Now();
  const auto info = client->GetServerInfo(Until(deadline));
  const absl::Time received = absl::Now();
  if (!info.ok()) {
    checks.push_back(FailedCheck("server", info.status()));
    if (absl::IsUnavailable(info.status()) || absl::IsDeadlineExceeded(info.status())) {
      return checks;
    }
  } else {
    checks.push_back(CheckServer(*info, ToolVersion()));
    checks.push_back(CheckClock(info->unix_ns(), sent, received));
    checks.push_back(CheckLimits(info->limits()));
  }
  checks.push_back(CheckHealthOf(*client, deadline));
  checks.push_back(MeasureLatency(*client, deadline));
  const auto statistics = client->GetStatistics(Until(deadline));
  if (statistics.ok()) {
    Append(CheckStatistics(*statistics), checks);
  } else {
    checks.push_back(FailedCheck("statistics", statistics.status()));
  }
  checks.push_back(CheckIncidents(client->ListIncidents(Until(deadline))));
  const auto devices = client->ListDevices(Until(deadline));
  if (devices.ok()) {
    const auto explanations = ExplainCanary(*client, *devices, deadline);
    checks.push_back(explanations.ok() ? CheckQuarantine(*explanations)
                                       : FailedCheck("quarantine", explanations.status()));
    std::random_device seed;
    Append(CheckDevices(*client, *devices, seed(), deadline), checks);
  } else {
    checks.push_back(FailedCheck("devices", devices.status()));
  }
  return checks;
}

}  // namespace gemmd
