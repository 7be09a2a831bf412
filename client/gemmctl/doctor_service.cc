// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/doctor_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/address.h"
#include "client/gemmctl/percentiles.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

// From here on a limit is near.
constexpr double kNear = 0.9;
// The alert for certificates fires then, too.
constexpr absl::Duration kSoon = absl::Hours(7 * 24);

double ShareOf(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string Percent(double share) { return absl::StrFormat("%.0f %%", 100 * share); }

Check CheckLoad(const v1::GetStatisticsResponse& now) {
  const double requests = ShareOf(now.admitted_requests(), now.max_admitted_requests());
  const double bytes = ShareOf(now.admitted_bytes(), now.max_admitted_bytes());
  Check check = {.name = "load",
                 .seen = absl::StrCat(FormatCount(now.admitted_requests()), " of ",
                                      FormatCount(now.max_admitted_requests()), " requests, ",
                                      FormatBytes(now.admitted_bytes()), " of ",
                                      FormatBytes(now.max_admitted_bytes()), " in flight")};
  if (requests <= kNear && bytes <= kNear) return check;
  check.state = CheckState::kWarn;
  check.advice =
      "beyond the limit products are refused: add replicas, have fewer clients, or raise "
      "--max-queued-requests or --max-queued-bytes";
  return check;
}

Check CheckTensors(const v1::TensorStatistics& tensors) {
  const double share = ShareOf(tensors.host_bytes(), tensors.max_host_bytes());
  Check check = {
      .name = "tensors",
      .seen = absl::StrCat(FormatCount(tensors.tensors()), " tensors of ",
                           FormatCount(tensors.sessions()), " sessions take ",
                           FormatBytes(tensors.host_bytes()), " of ",
                           FormatBytes(tensors.max_host_bytes()), " (", Percent(share), ")")};
  if (share <= kNear) return check;
  check.state = CheckState::kWarn;
  check.advice =
      "beyond the limit uploads are refused: raise --tensor-bytes, or have clients delete what "
      "they no longer need (`gemmctl top` shows which sessions have the most)";
  return check;
}

Check CheckMemory(const v1::GetStatisticsResponse& now) {
  int64_t refused = 0;
  for (const v1::Count& refusal : now.refusals()) {
    if (refusal.name() == "memory") refused += refusal.count();
  }
  Check check = {.name = "memory",
                 .seen = absl::StrCat(FormatCount(refused),
                                      " products refused for want of memory since the start")};
  if (refused == 0) return check;
  check.state = CheckState::kWarn;
  check.advice =
      "the daemon comes near --memory-limit-bytes: give it more memory, or lower --tensor-bytes or "
      "--max-queued-bytes";
  return check;
}

}  // namespace

Check CheckPlainTransport(absl::string_view address) {
  Check check = {.name = "transport", .seen = "a unix socket"};
  if (IsUnix(address)) return check;
  check.seen = "plain TCP on this machine";
  if (IsLoopback(address)) return check;
  check.state = CheckState::kWarn;
  check.seen = absl::StrCat("plain TCP to ", address);
  check.advice =
      "whoever is on the way reads and changes matrices: have the daemon listen at tls: or mtls:, "
      "and give the address with tls: before it";
  return check;
}

Check CheckTls(const absl::StatusOr<TlsPeer>& peer, absl::Time now) {
  Check check = {.name = "transport", .seen = ""};
  if (!peer.ok()) {
    check.state = CheckState::kFail;
    check.seen = std::string(peer.status().message());
    check.advice = "see whether the daemon listens there, and at an address with tls: or mtls:";
    return check;
  }
  const absl::Duration left = peer->not_after - now;
  check.seen =
      absl::StrCat(peer->version, ", certificate valid until ",
                   absl::FormatTime("%Y-%m-%d %H:%M:%SZ", peer->not_after, absl::UTCTimeZone()),
                   peer->fault.empty() ? "" : absl::StrCat(", not to be trusted: ", peer->fault));
  if (peer->fault.empty() && left > kSoon) return check;
  check.state =
      peer->fault.empty() && left > absl::ZeroDuration() ? CheckState::kWarn : CheckState::kFail;
  check.advice =
      left > kSoon
          ? "see that --tls-ca has the authority that signed it, and that it bears the name that "
            "is called (--tls-server-name)"
          : "put a new certificate into the files of --tls-cert and --tls-key; the daemon loads "
            "changed files by itself";
  return check;
}

Check CheckServer(const v1::GetServerInfoResponse& info, absl::string_view client_version) {
  Check check = {.name = "server",
                 .seen = absl::StrCat("gemmd ", info.version(), ", gemmctl ", client_version,
                                      ", up for ", FormatNanoseconds(info.uptime_ns()))};
  if (info.draining()) {
    check.state = CheckState::kFail;
    check.seen += ", draining";
    check.advice = "the daemon ends and refuses new products: call another replica";
  } else if (info.version() != client_version) {
    check.state = CheckState::kWarn;
    check.advice = "install the same version here and there: options and fields may differ";
  }
  return check;
}

Check CheckClock(int64_t server_unix_ns, absl::Time sent, absl::Time received) {
  constexpr absl::Duration kMuch = absl::Seconds(1);
  // What --jwt-clock-skew allows unless told otherwise.
  constexpr absl::Duration kTooMuch = absl::Seconds(60);
  Check check = {.name = "clock", .seen = "the server does not tell its time"};
  if (server_unix_ns == 0) {
    check.state = CheckState::kWarn;
    check.advice = "the daemon is older than this gemmctl: install the same version";
    return check;
  }
  const absl::Time server = absl::FromUnixNanos(server_unix_ns);
  // The server looked at its clock at some time between these two.
  const absl::Duration ahead = server - received;
  const absl::Duration behind = sent - server;
  const absl::Duration least = std::max(ahead, behind);
  if (least <= absl::ZeroDuration()) {
    check.seen = absl::StrCat("the server's is that of this machine, to ",
                              FormatNanoseconds(absl::ToInt64Nanoseconds(received - sent)));
    return check;
  }
  check.seen =
      absl::StrCat("the server's is ", FormatNanoseconds(absl::ToInt64Nanoseconds(least)),
                   ahead > behind ? " ahead of" : " behind", " that of this machine, or more");
  if (least < kMuch) return check;
  check.state = least < kTooMuch ? CheckState::kWarn : CheckState::kFail;
  check.advice =
      "set both clocks by NTP: the daemon judges certificates and signed tokens by its own, and "
      "logs and spans bear its time";
  return check;
}

Check CheckLimits(const v1::Limits& limits) {
  Check check = {
      .name = "limits",
      .seen = absl::StrCat("messages of up to ", FormatBytes(limits.max_message_bytes()), ", ",
                           FormatCount(limits.max_queued_requests()), " requests of ",
                           FormatBytes(limits.max_queued_bytes()), " in flight, ",
                           FormatCount(limits.max_concurrent_streams()), " calls per connection")};
  constexpr int64_t kUsualBytes = 4 << 20;
  if (limits.max_message_bytes() < kUsualBytes) {
    check.state = CheckState::kWarn;
    check.advice =
        "messages are shorter than the 4 MiB that any gRPC client sends by default: raise "
        "--max-message-bytes";
  } else if (limits.max_queued_bytes() < limits.max_message_bytes()) {
    check.state = CheckState::kWarn;
    check.advice =
        "a message may be longer than --max-queued-bytes, which refuses its product always: raise "
        "that, or lower --max-message-bytes";
  }
  return check;
}

Check CheckLatency(std::vector<int64_t> round_trips_ns) {
  constexpr int64_t kSlowNs = 100'000'000;
  const size_t calls = round_trips_ns.size();
  const Spread spread = SpreadOf(std::move(round_trips_ns));
  Check check = {.name = "latency",
                 .seen = absl::StrCat("p50 ", FormatNanoseconds(spread.p50), ", p99 ",
                                      FormatNanoseconds(spread.p99), " of ", calls,
                                      " health checks, one after the other")};
  if (spread.p50 < kSlowNs) return check;
  check.state = CheckState::kWarn;
  check.advice =
      "the network is far, or the daemon's host has no processor free: compare with `gemmctl "
      "doctor` on that host";
  return check;
}

std::vector<Check> CheckStatistics(const v1::GetStatisticsResponse& statistics) {
  return {CheckLoad(statistics), CheckMemory(statistics), CheckTensors(statistics.tensors())};
}

Check CheckQuarantine(const std::vector<v1::ExplainResponse>& explanations) {
  std::vector<std::string> found;
  for (const v1::ExplainResponse& explanation : explanations) {
    for (const v1::Refusal& refusal : explanation.refusals()) {
      if (!absl::StrContains(refusal.reason(), "quarantined")) continue;
      found.push_back(absl::StrCat(refusal.kernel(), " on ", explanation.device()));
    }
  }
  Check check = {.name = "quarantine",
                 .seen = absl::StrCat("no kernel for the canary is quarantined on any of ",
                                      explanations.size(), " devices")};
  if (found.empty()) return check;
  check.state = CheckState::kWarn;
  check.seen = absl::StrJoin(found, ", ");
  check.advice =
      "these gave a wrong answer: `gemmctl replay ID` computes the product of an incident again; "
      "have the hardware checked before the daemon's restart, which ends the quarantine";
  return check;
}

Check CheckIncidents(const absl::StatusOr<v1::ListIncidentsResponse>& incidents) {
  if (!incidents.ok()) return FailedCheck("incidents", incidents.status());
  Check check = {.name = "incidents",
                 .seen = absl::StrCat(incidents->found(), " wrong answers since the start")};
  if (incidents->found() == 0) return check;
  check.state = CheckState::kWarn;
  check.advice = "`gemmctl incidents` tells devices, kernels and elements";
  return check;
}

Check FailedCheck(std::string name, const absl::Status& status) {
  Check check = {.name = std::move(name), .state = CheckState::kFail, .seen = ""};
  check.seen = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  check.advice = "see whether the daemon runs, its log, and the network between";
  if (absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status)) {
    check.state = CheckState::kWarn;
    check.advice =
        "this caller may not ask: give --token-file of one who may, or ask over the daemon's unix "
        "socket";
  } else if (absl::IsUnimplemented(status)) {
    check.state = CheckState::kWarn;
    check.advice = "the daemon is older than this gemmctl: install the same version";
  }
  return check;
}

}  // namespace gemmd
