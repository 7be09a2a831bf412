// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_session.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/gemmctl/text_table.h"
#include "client/load/slo_search.h"

namespace gemmd {
namespace {

bool IsThisMachine(absl::string_view address) {
  for (absl::string_view prefix :
       {"unix", "127.", "localhost", "ipv4:127.", "[::1]", "ipv6:[::1]"}) {
    if (absl::StartsWith(address, prefix)) return true;
  }
  return false;
}

absl::StatusOr<Client> Connect(const LoadFlags& flags, const std::string& address) {
  ClientOptions options;
  options.channels = flags.channels;
  options.max_attempts = 1 + flags.retries;
  options.max_message_bytes = std::numeric_limits<int32_t>::max();
  // A name that stands for several servers is balanced over all of them.
  options.channel_arguments.SetLoadBalancingPolicyName("round_robin");
  auto client = Client::Create(address, options);
  if (!client.ok()) return client.status();
  // So that no call of the load waits for a connection. What else the server says does not matter.
  for (int i = 0; i < flags.channels; ++i) {
    const auto health = client->CheckHealth("", {.timeout = absl::Seconds(5)});
    if (absl::IsUnavailable(health.status()) || absl::IsDeadlineExceeded(health.status())) {
      return absl::Status(health.status().code(),
                          absl::StrCat(address, ": ", health.status().message()));
    }
  }
  return client;
}

// Everything that the steps of one session share.
class Session {
 public:
  Session(const LoadFlags& flags, const StopRequests& stop, LiveView& view)
      : flags_(flags), stop_(stop), view_(view) {}

  absl::Status Prepare() {
    auto mix = MixOf(flags_);
    if (!mix.ok()) return mix.status();
    mix_ = *std::move(mix);
    auto steps = StepsOf(flags_);
    if (!steps.ok()) return steps.status();
    steps_ = *std::move(steps);
    for (const std::string& address : flags_.addresses) {
      auto client = Connect(flags_, address);
      if (!client.ok()) return client.status();
      targets_.clients.push_back(*std::move(client));
      report_.is_same_machine |= IsThisMachine(address);
    }
    const auto info = targets_.clients[0].GetServerInfo({.timeout = absl::Seconds(5)});
    if (info.ok()) report_.server_version = info->version();
    return MakePayloads();
  }

  absl::StatusOr<LoadReport> Run() {
    Describe();
    const MixPicker picker(mix_, flags_.seed);
    targets_.payloads = &payloads_;
    targets_.picker = &picker;
    if (!flags_.slo.empty()) {
      const absl::Status status = Search();
      if (!status.ok()) return status;
      return std::move(report_);
    }
    for (const NamedStep& step : steps_) {
      if (stop_.load() > 0) break;
      report_.steps.push_back(RunStep(step));
    }
    return std::move(report_);
  }

 private:
  absl::Status MakePayloads() {
    const OperandMode* mode = nullptr;
    for (const OperandMode& known : OperandModes()) {
      if (known.name == flags_.operands) mode = &known;
    }
    if (mode == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("--operands: got \"", flags_.operands, "\""));
    }
    const OperandValues values =
        flags_.values == "normal" ? OperandValues::kNormal : OperandValues::kIntegers;
    for (const LoadProduct& product : mix_) {
      auto payload = MakePayload(product, values, flags_.seed + payloads_.size());
      if (!payload.ok()) return payload.status();
      auto placed = mode->place(*payload->request, targets_.clients[0]);
      if (!placed.ok()) return placed.status();
      payload->request = std::make_shared<const v1::MultiplyRequest>(*std::move(placed));
      payloads_.push_back(*std::move(payload));
    }
    return absl::OkStatus();
  }

  void Describe() {
    report_.version = GEMMD_VERSION;
    report_.started = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
    report_.command = flags_.command;
    report_.addresses = flags_.addresses;
    report_.channels = flags_.channels;
    report_.mix = !flags_.shape.empty()      ? mix_[0].name
                  : !flags_.mix_path.empty() ? flags_.mix_path
                  : flags_.profile.empty()   ? "small"
                                             : flags_.profile;
    report_.operands = absl::StrCat(flags_.operands, " ", flags_.values);
    const bool is_open = std::holds_alternative<OpenLoop>(steps_[0].step.loop);
    report_.arrivals = !is_open                      ? "closed loop"
                       : !flags_.replay_path.empty() ? "open loop, replayed"
                       : flags_.arrivals == "poisson"
                           ? absl::StrCat("open loop, Poisson with seed ", flags_.seed)
                           : "open loop, constant";
    report_.warmup_s = static_cast<double>(steps_[0].step.warmup_ns) * 1e-9;
    for (const LoadProduct& product : mix_) report_.products.push_back(product.name);
  }

  ReportStep RunStep(const NamedStep& named) {
    Verifier verifier(payloads_, flags_.verified_share, flags_.seed);
    targets_.verifier = &verifier;
    view_.BeginStep(named.name);
    ReportStep step;
    step.name = named.name;
    step.is_open = std::holds_alternative<OpenLoop>(named.step.loop);
    step.target = named.target;
    step.result = RunLoad(targets_, named.step, stop_,
                          [this](const LoadInterval& interval) { view_.Show(interval); });
    view_.EndStep();
    step.verified = verifier.Finish();
    step.warnings = WarningsOf(step, report_.is_same_machine);
    return step;
  }

  absl::Status Search() {
    const auto objective = ParseSlo(flags_.slo);
    if (!objective.ok()) return objective.status();
    SloPlan plan;
    plan.first_rate = steps_[0].target;
    NamedStep window = steps_[0];
    window.step.duration_ns = std::max<int64_t>(1, window.step.duration_ns / plan.windows);
    SloFindings findings;
    findings.objective = objective->text;
    findings.rule = SloRule(*objective, plan, static_cast<double>(window.step.duration_ns) * 1e-9);
    const std::vector<SloTrial> trials =
        SearchRate(plan, [&](double rate) { return TryRate(*objective, plan, window, rate); });
    findings.rate = HighestThatHolds(trials);
    for (const SloTrial& trial : trials) {
      findings.trials.push_back(absl::StrFormat(
          "%.1f/s %s: %s", trial.rate, trial.holds ? "holds" : "does not hold", trial.what));
    }
    report_.slo = std::move(findings);
    return absl::OkStatus();
  }

  // One trial; its last window goes into the report.
  std::optional<SloTrial> TryRate(const SloObjective& objective, const SloPlan& plan,
                                  NamedStep window, double rate) {
    RateCurve& curve = std::get<OpenLoop>(window.step.loop).arrivals.rate;
    curve.from = curve.to = rate;
    window.target = rate;
    SloTrial trial = {.rate = rate, .holds = true};
    for (int i = 0; i < plan.windows && trial.holds; ++i) {
      window.name = absl::StrFormat("%.1f/s, window %d", rate, i + 1);
      // Each window has arrivals of its own.
      std::get<OpenLoop>(window.step.loop).arrivals.seed = flags_.seed + static_cast<uint64_t>(i);
      ReportStep step = RunStep(window);
      if (stop_.load() > 0) return std::nullopt;
      const std::string why = WhyWindowFails(objective, step.result);
      trial.holds = why.empty();
      trial.what = absl::StrFormat(
          "window %d: %s", i + 1,
          trial.holds ? FormatNanoseconds(step.result.tally.latency.ValueAt(objective.fraction))
                      : why);
      const bool is_last = !trial.holds || i + 1 == plan.windows;
      if (is_last) report_.steps.push_back(std::move(step));
    }
    return trial;
  }

  const LoadFlags& flags_;
  const StopRequests& stop_;
  LiveView& view_;
  Mix mix_;
  std::vector<NamedStep> steps_;
  std::vector<Payload> payloads_;
  LoadTargets targets_;
  LoadReport report_;
};

}  // namespace

absl::StatusOr<LoadReport> RunSession(const LoadFlags& flags, const StopRequests& stop,
                                      LiveView& view) {
  Session session(flags, stop, view);
  if (absl::Status status = session.Prepare(); !status.ok()) return status;
  return session.Run();
}

}  // namespace gemmd
