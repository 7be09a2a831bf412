// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/doctor.h"

#include <algorithm>
#include <future>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/gemmctl/command.h"
#include "client/gemmctl/product_report.h"
#include "client/matrix/random_matrix.h"
#include "client/matrix/verify.h"
#include "client/terminal/option.h"
#include "client/terminal/text.h"
#include "client/terminal/version.h"
#include "gemmd/element_codec.h"
#include "kernels/matrix/status.h"
#include "nlohmann/json.hpp"

namespace gemmd {
namespace {

int64_t Count(const std::vector<Check>& checks, CheckState state) {
  return std::count_if(checks.begin(), checks.end(),
                       [state](const Check& check) { return check.state == state; });
}

}  // namespace

absl::string_view CheckStateName(CheckState state) {
  switch (state) {
    case CheckState::kOk: return "ok";
    case CheckState::kWarn: return "warn";
    case CheckState::kFail: return "fail";
  }
  return "";
}

namespace {

std::string DoctorText(const std::vector<Check>& checks) {
  TextTable table({{"check"}, {"state"}, {"seen"}});
  std::string advice;
  for (const Check& check : checks) {
    table.AddRow({check.name, std::string(CheckStateName(check.state)), check.seen});
    if (check.advice.empty()) continue;
    absl::StrAppend(&advice, check.name, ": ", check.advice, "\n");
  }
  return absl::StrCat(table.Print(), advice.empty() ? "" : "\nWhat to do:\n", advice, "\n",
                      checks.size(), " checks: ", Count(checks, CheckState::kOk), " ok, ",
                      Count(checks, CheckState::kWarn), " warn, ", Count(checks, CheckState::kFail),
                      " fail\n");
}

nlohmann::ordered_json DoctorJson(const std::vector<Check>& checks) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"state", std::string(CheckStateName(check.state))},
                    {"seen", check.seen},
                    {"advice", check.advice}});
  }
  return {{"checks", list},
          {"ok", Count(checks, CheckState::kOk)},
          {"warn", Count(checks, CheckState::kWarn)},
          {"fail", Count(checks, CheckState::kFail)}};
}

// Doctor warns of more than this share of a limit.
constexpr double kWarningShare = 0.9;
// Doctor warns of a certificate that expires within this time, as the alert does.
constexpr absl::Duration kWarningTime = absl::Hours(7 * 24);

// The check with an outcome other than ok.
Check Judged(Check check, CheckState state, const char* advice) {
  check.state = state;
  check.advice = advice;
  return check;
}

double ShareOf(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string Percent(double share) { return absl::StrFormat("%.0f %%", 100 * share); }

// A failed call. Only a warning if the server lacks the call or denies it to this caller, which
// says nothing about the server's health.
Check FailedCheck(std::string name, const absl::Status& status) {
  Check check = {.name = std::move(name), .state = CheckState::kFail, .seen = ""};
  check.seen = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  check.advice = "check that the daemon runs, its log, and the network in between";
  if (absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status)) {
    check.state = CheckState::kWarn;
    check.advice =
        "this caller may not ask: use --token-file of a caller who may, or the daemon's unix "
        "socket";
  } else if (absl::IsUnimplemented(status)) {
    check.state = CheckState::kWarn;
    check.advice = "the daemon is older than this gemmctl: install the same version";
  }
  return check;
}

Check CheckLoad(const v1::GetStatisticsResponse& now) {
  const double requests = ShareOf(now.admitted_requests(), now.max_admitted_requests());
  const double bytes = ShareOf(now.admitted_bytes(), now.max_admitted_bytes());
  Check check = {.name = "load",
                 .seen = absl::StrCat(FormatCount(now.admitted_requests()), " of ",
                                      FormatCount(now.max_admitted_requests()), " requests, ",
                                      FormatBytes(now.admitted_bytes()), " of ",
                                      FormatBytes(now.max_admitted_bytes()), " in flight")};
  if (requests <= kWarningShare && bytes <= kWarningShare) return check;
  return Judged(std::move(check), CheckState::kWarn,
                "beyond the limit products are refused: add replicas, have fewer clients, or raise "
                "--max-queued-requests or --max-queued-bytes");
}

Check CheckTensors(const v1::TensorStatistics& tensors) {
  const double share = ShareOf(tensors.host_bytes(), tensors.max_host_bytes());
  Check check = {
      .name = "tensors",
      .seen = absl::StrCat(FormatCount(tensors.tensors()), " tensors of ",
                           FormatCount(tensors.sessions()), " sessions take ",
                           FormatBytes(tensors.host_bytes()), " of ",
                           FormatBytes(tensors.max_host_bytes()), " (", Percent(share), ")")};
  if (share <= kWarningShare) return check;
  return Judged(
      std::move(check), CheckState::kWarn,
      "beyond the limit uploads are refused: raise --tensor-bytes, or have clients delete what "
      "they no longer need (`gemmctl top` shows which sessions have the most)");
}

Check CheckMemory(const v1::GetStatisticsResponse& now) {
  int64_t refused = 0;
  for (const v1::Count& refusal : now.refusals()) {
    if (refusal.name() == "memory") refused += refusal.count();
  }
  Check check = {.name = "memory",
                 .seen = absl::StrCat(FormatCount(refused),
                                      " products refused for lack of memory since the start")};
  if (refused == 0) return check;
  return Judged(
      std::move(check), CheckState::kWarn,
      "the daemon is close to --memory-limit-bytes: give it more memory, or lower --tensor-bytes "
      "or --max-queued-bytes");
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
      "anybody on the network path can read and change matrices: have the daemon listen at tls: or "
      "mtls:, and use an address that begins with tls:";
  return check;
}

Check CheckTls(const absl::StatusOr<TlsPeer>& peer, absl::Time now) {
  Check check = {.name = "transport", .seen = ""};
  if (!peer.ok()) {
    check.state = CheckState::kFail;
    check.seen = std::string(peer.status().message());
    check.advice = "check that the daemon listens there, at an address with tls: or mtls:";
    return check;
  }
  const absl::Duration left = peer->not_after - now;
  check.seen =
      absl::StrCat(peer->version, ", certificate valid until ",
                   absl::FormatTime("%Y-%m-%d %H:%M:%SZ", peer->not_after, absl::UTCTimeZone()),
                   peer->fault.empty() ? "" : absl::StrCat(", not to be trusted: ", peer->fault));
  if (peer->fault.empty() && left > kWarningTime) return check;
  check.state =
      peer->fault.empty() && left > absl::ZeroDuration() ? CheckState::kWarn : CheckState::kFail;
  check.advice = left > kWarningTime
                     ? "check that --tls-ca contains the authority that signed it, and "
                       "that the certificate contains the server name (--tls-server-name)"
                     : "put a new certificate into the files of --tls-cert and --tls-key; "
                       "the daemon reloads changed files on its own";
  return check;
}

Check CheckServer(const v1::GetServerInfoResponse& info, absl::string_view client_version) {
  Check check = {.name = "server",
                 .seen = absl::StrCat("gemmd ", info.version(), ", gemmctl ", client_version,
                                      ", up for ", FormatNanoseconds(info.uptime_ns()))};
  if (info.draining()) {
    check.state = CheckState::kFail;
    check.seen += ", draining";
    check.advice = "the daemon is shutting down and refuses new products: call another replica";
  } else if (info.version() != client_version) {
    check.state = CheckState::kWarn;
    check.advice = "install the same version on both sides: options and fields may differ";
  }
  return check;
}

Check CheckClock(int64_t server_unix_ns, absl::Time sent, absl::Time received) {
  constexpr absl::Duration kMuch = absl::Seconds(1);
  // By which the clock of an issuer of JSON web tokens may differ from the daemon's.
  constexpr absl::Duration kTooMuch = absl::Seconds(60);
  Check check = {.name = "clock", .seen = "the server does not report its time"};
  if (server_unix_ns == 0) {
    return Judged(std::move(check), CheckState::kWarn,
                  "the daemon is older than this gemmctl: install the same version");
  }
  const absl::Time server = absl::FromUnixNanos(server_unix_ns);
  // The server read its clock at some time between these two.
  const absl::Duration ahead = server - received;
  const absl::Duration behind = sent - server;
  const absl::Duration min_difference = std::max(ahead, behind);
  if (min_difference <= absl::ZeroDuration()) {
    check.seen = absl::StrCat("the server's is that of this machine, to ",
                              FormatNanoseconds(absl::ToInt64Nanoseconds(received - sent)));
    return check;
  }
  check.seen =
      absl::StrCat("the server's is ", FormatNanoseconds(absl::ToInt64Nanoseconds(min_difference)),
                   ahead > behind ? " ahead of" : " behind", " that of this machine, or more");
  if (min_difference < kMuch) return check;
  check.state = min_difference < kTooMuch ? CheckState::kWarn : CheckState::kFail;
  check.advice =
      "synchronize both clocks by NTP: the daemon uses its own clock for certificates, signed "
      "tokens, logs and spans";
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
        "messages longer than --max-queued-bytes are always refused: raise the limit, or lower "
        "--max-message-bytes";
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
                                      " consecutive health checks")};
  if (spread.p50 < kSlowNs) return check;
  return Judged(
      std::move(check), CheckState::kWarn,
      "the network is slow, or the daemon's host has no free processor: compare with `gemmctl "
      "doctor` on that host");
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
      "have the hardware checked before restarting the daemon, which ends the quarantine";
  return check;
}

Check CheckIncidents(const absl::StatusOr<v1::ListIncidentsResponse>& incidents) {
  if (!incidents.ok()) return FailedCheck("incidents", incidents.status());
  Check check = {.name = "incidents",
                 .seen = absl::StrCat(incidents->found(), " wrong answers since the start")};
  if (incidents->found() == 0) return check;
  return Judged(std::move(check), CheckState::kWarn,
                "`gemmctl incidents` shows devices, kernels and elements");
}

namespace {

constexpr int64_t kM = 67, kN = 45, kK = 93;
constexpr v1::ElementType kType = v1::ELEMENT_TYPE_F32;

constexpr char kRepair[] =
    "exclude the device (--devices), check the daemon's log and have the hardware checked";

// Odd numbers from -7 to 7: no product is 0, so that no order of summation gives -0.
v1::Operand OddIntegers(int64_t rows, int64_t columns, SplitMix& random) {
  v1::Operand operand;
  operand.set_type(v1::ELEMENT_TYPE_F16);
  const int64_t count = rows * columns;
  std::string bytes(static_cast<size_t>(count) * 2, '\0');
  for (int64_t i = 0; i < count; ++i) {
    const int value = static_cast<int>(random.Next() % 8) * 2 - 7;
    StoreElement(operand.type(), ElementPattern(operand.type(), value), i, bytes.data());
  }
  operand.set_data(std::move(bytes));
  return operand;
}

// An answer, with its arrival time.
struct Answer {
  absl::StatusOr<v1::MultiplyResponse> response = absl::UnknownError("");
  absl::Time end;
};

Check Judge(const Canary& canary, const Answer& answer, absl::Duration took, Check check) {
  if (!answer.response.ok()) {
    check.state = CheckState::kFail;
    check.seen = absl::StrCat("no answer: ", answer.response.status().message());
    check.advice = absl::StrCat("see `gemmctl top` for what runs there, and the daemon's log for ",
                                check.name.substr(check.name.find(' ') + 1));
    return check;
  }
  const v1::MultiplyResponse& response = *answer.response;
  const std::string fault = FaultOf(canary, response);
  if (!fault.empty()) {
    check.state = CheckState::kFail;
    check.seen = absl::StrCat(fault, ", by ", response.kernel());
    check.advice = kRepair;
    return check;
  }
  check.seen = absl::StrCat("right to the bit by ", response.kernel(), " in ",
                            FormatNanoseconds(absl::ToInt64Nanoseconds(took)), " (compute ",
                            FormatNanoseconds(response.timing().compute_ns()), ")");
  return check;
}

}  // namespace

Canary::Canary(uint64_t seed) {
  SplitMix random(seed);
  request.set_m(kM);
  request.set_n(kN);
  request.set_k(kK);
  *request.mutable_a() = OddIntegers(kM, kK, random);
  *request.mutable_b() = OddIntegers(kK, kN, random);
  request.mutable_d()->set_type(kType);
  std::vector<int64_t> rows(kM);
  std::iota(rows.begin(), rows.end(), 0);
  for (const BoundedElement& element : Reference(request).Rows(0, rows)) {
    want.push_back(ElementPattern(kType, element.value));
  }
}

std::string FaultOf(const Canary& canary, const v1::MultiplyResponse& answer) {
  const auto product = MultiplyResult::FromResponse(answer);
  if (!product.ok()) return absl::StrCat("no product: ", product.status().message());
  if (product->type() != kType || product->rows() != kM || product->columns() != kN ||
      product->batch() != 1 || product->data().size() != canary.want.size() * sizeof(float)) {
    return absl::StrCat("D is ", product->rows(), " x ", product->columns(), ", want ", kM, " x ",
                        kN, " of f32");
  }
  const auto data = product->data();
  const absl::string_view bytes(reinterpret_cast<const char*>(data.data()), data.size());
  size_t wrong = 0;
  std::string first;
  for (size_t i = 0; i < canary.want.size(); ++i) {
    const uint64_t got = LoadElement(kType, bytes, static_cast<int64_t>(i));
    if (got == canary.want[i]) continue;
    if (wrong++ > 0) continue;
    first = absl::StrFormat("[%d, %d] has 0x%x, want 0x%x", static_cast<int64_t>(i) / kN,
                            static_cast<int64_t>(i) % kN, got, canary.want[i]);
  }
  if (wrong == 0) return "";
  return absl::StrCat(wrong, " of ", canary.want.size(), " elements are wrong: ", first);
}

namespace {

// Options with the time left until `deadline`; if none is left, a tiny timeout, so that the call
// fails.
CallOptions Until(absl::Time deadline) {
  return {.timeout = std::max(deadline - absl::Now(), absl::Milliseconds(1)), .traceparent = {}};
}

// Asks how each ready device would run the canary. Errors: the server's own.
absl::StatusOr<std::vector<v1::ExplainResponse>> ExplainCanary(
    Client& client, const v1::ListDevicesResponse& devices, absl::Time deadline) {
  v1::MultiplyRequest request = Canary(0).request;
  std::vector<v1::ExplainResponse> explanations;
  for (const v1::Device& device : devices.devices()) {
    if (!device.ready()) continue;
    request.set_device(device.name());
    ASSIGN_OR_RETURN(auto explanation, client.Explain(request, Until(deadline)));
    explanations.push_back(std::move(explanation));
  }
  return explanations;
}

// Sends the canary to all of `devices` at once and waits for the answers until `deadline`, so that
// a hanging device delays no other. A device that is not ready counts as a failure.
std::vector<Check> CheckDevices(Client& client, const v1::ListDevicesResponse& devices,
                                uint64_t seed, absl::Time deadline) {
  const Canary canary(seed);
  const absl::Time start = absl::Now();
  const CallOptions options = Until(deadline);
  std::vector<Check> checks;
  std::vector<std::future<Answer>> answers;  // Without a call for a device that is not ready.
  for (const v1::Device& device : devices.devices()) {
    std::future<Answer>& answer = answers.emplace_back();
    Check& check = checks.emplace_back();
    check.name = absl::StrCat("canary ", device.name());
    if (!device.ready()) {
      check.state = CheckState::kFail;
      check.seen = absl::StrCat("the device is not ready: ", device.not_ready_reason());
      check.advice =
          absl::StrCat("see event=device_not_ready in the daemon's log; `gemmctl restart-device ",
                       device.name(), "` restarts the worker of a GPU");
      continue;
    }
    v1::MultiplyRequest request = canary.request;
    request.set_device(device.name());
    answer = std::async(std::launch::async, [&client, options, request = std::move(request)] {
      auto response = client.Multiply(request, options);
      return Answer{std::move(response), absl::Now()};
    });
  }
  // Each call ends by its own deadline.
  for (size_t i = 0; i < checks.size(); ++i) {
    if (!answers[i].valid()) continue;
    const Answer answer = answers[i].get();
    checks[i] = Judge(canary, answer, answer.end - start, std::move(checks[i]));
  }
  return checks;
}

constexpr int kHealthChecks = 48;

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
  return Judged(
      std::move(check), CheckState::kFail,
      "load balancers send no calls here: the default device is not ready, or the daemon drains");
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

// Checks the server until `deadline`; checks not made by then are failures. If the server does not
// answer at all, skips the checks that need an answer. Errors: InvalidArgument for a bad address or
// option.
absl::StatusOr<std::vector<Check>> Examine(const GlobalFlags& global, absl::Time deadline) {
  ASSIGN_OR_RETURN(auto client, Connect(global));
  std::vector<Check> checks = {CheckTransport(global, deadline)};
  const absl::Time sent = absl::Now();
  const auto info = client.GetServerInfo(Until(deadline));
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
  checks.push_back(CheckHealthOf(client, deadline));
  checks.push_back(MeasureLatency(client, deadline));
  const auto statistics = client.GetStatistics(Until(deadline));
  if (statistics.ok()) {
    Append(CheckStatistics(*statistics), checks);
  } else {
    checks.push_back(FailedCheck("statistics", statistics.status()));
  }
  checks.push_back(CheckIncidents(client.ListIncidents(Until(deadline))));
  const auto devices = client.ListDevices(Until(deadline));
  if (devices.ok()) {
    const auto explanations = ExplainCanary(client, *devices, deadline);
    checks.push_back(explanations.ok() ? CheckQuarantine(*explanations)
                                       : FailedCheck("quarantine", explanations.status()));
    std::random_device seed;
    Append(CheckDevices(client, *devices, seed(), deadline), checks);
  } else {
    checks.push_back(FailedCheck("devices", devices.status()));
  }
  return checks;
}

constexpr char kDoctorHelp[] =
    "Examples:\n"
    "  gemmctl doctor\n"
    "  gemmctl doctor --address tls:gemmd.example:8470 --timeout 10\n"
    "  gemmctl doctor --json | jq '.checks[] | select(.state != \"ok\")'\n\n"
    "Checks the transport (TLS and the expiry of its certificate), versions, clocks, limits,\n"
    "health, latency, requests in flight, memory, tensors, quarantined kernels and incidents, and\n"
    "sends each device a product whose exact result is known. --timeout applies to the whole\n"
    "command (default 30). Exits with 0 if no check fails, with or without warnings, and with 1\n"
    "if a check fails or the server does not answer.";

ExitCode RunDoctor(const GlobalFlags& global, const Console& console) {
  absl::Duration limit = absl::Seconds(30);
  if (!global.timeout.empty()) {
    const auto timeout = ParseTimeout(global.timeout);
    if (!timeout.ok()) return FailLocally(console, timeout.status());
    limit = *timeout;
  }
  const auto checks = Examine(global, absl::Now() + limit);
  if (!checks.ok()) return FailLocally(console, checks.status());
  console.Print(global.json ? JsonLine(DoctorJson(*checks)) : DoctorText(*checks));
  return Count(*checks, CheckState::kFail) > 0 ? ExitCode::kRefused : ExitCode::kOk;
}

}  // namespace

CommandRun AddDoctor(CLI::App& app) {
  SetFooter(app, kDoctorHelp);
  return RunDoctor;
}

}  // namespace gemmd
