// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_session.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/load/endpoint.h"
#include "client/load/operand_place.h"
#include "client/load/slo_search.h"
#include "client/load/verifier.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

absl::Status CheckStop(const StopRequests& stop) {
  if (stop.load() == 0) return absl::OkStatus();
  return absl::CancelledError("interrupted before the first call");
}

absl::StatusOr<Client> Connect(const LoadFlags& flags, const std::string& address,
                               const StopRequests& stop) {
  ClientOptions options;
  if (absl::Status status = ApplySecurityFlags(flags.security, options); !status.ok()) {
    return status;
  }
  options.channels = flags.channels;
  options.max_attempts = 1 + flags.retries;
  options.max_message_bytes = std::numeric_limits<int32_t>::max();
  // A name that stands for several servers is balanced over all of them.
  options.channel_arguments.SetLoadBalancingPolicyName("round_robin");
  auto client = Client::Create(address, options);
  if (!client.ok()) return client.status();
  // So that no call of the load waits for a connection. What else the server says does not matter.
  for (int i = 0; i < flags.channels; ++i) {
    if (absl::Status status = CheckStop(stop); !status.ok()) return status;
    const auto health = client->CheckHealth("", {.timeout = absl::Seconds(5)});
    if (absl::IsUnavailable(health.status()) || absl::IsDeadlineExceeded(health.status())) {
      return absl::Status(health.status().code(),
                          absl::StrCat(address, ": ", health.status().message()));
    }
  }
  return client;
}

// Adds what a further window of the same trial found.
void Append(ReportStep& step, const ReportStep& window) {
  step.result.Append(window.result);
  step.verified.Add(window.verified);
}

// Everything that the steps of one session share.
class Session {
 public:
  Session(const LoadFlags& flags, const SessionPlan& plan, const StopRequests& stop, LiveView& view)
      : flags_(flags), plan_(plan), stop_(stop), view_(view), picker_(plan.mix, flags.seed) {
    targets_.payloads = &payloads_;
    targets_.picker = &picker_;
    targets_.streams = flags.streams;
  }

  absl::Status Prepare() {
    Describe();
    const std::string host_name = HostName();
    for (const std::string& address : flags_.addresses) {
      for (int owner = 0; owner < flags_.owners; ++owner) {
        auto client = Connect(flags_, address, stop_);
        if (!client.ok()) return client.status();
        targets_.clients.push_back(*std::move(client));
        address_of_client_.push_back(address);
      }
      const auto info = targets_.clients.back().GetServerInfo({.timeout = absl::Seconds(5)});
      report_.servers.push_back({address, info.ok() ? info->version() : ""});
      report_.is_same_machine |= IsThisMachine(address, host_name);
    }
    readers_.resize(targets_.clients.size());
    return MakePayloads();
  }

  LoadReport Run() {
    if (plan_.objective.has_value()) {
      Search(*plan_.objective);
    } else {
      report_.steps_planned = static_cast<int64_t>(plan_.steps.size());
      for (const NamedStep& step : plan_.steps) {
        if (stop_.load() > 0) break;
        report_.steps.push_back(RunStep(step));
        AddWarnings();
      }
    }
    return std::move(report_);
  }

 private:
  absl::Status MakePayloads() {
    const OperandValues values =
        flags_.values == "normal" ? OperandValues::kNormal : OperandValues::kIntegers;
    for (const LoadProduct& product : plan_.mix) {
      if (absl::Status status = CheckStop(stop_); !status.ok()) return status;
      auto payload = MakePayload(product, values, flags_.seed + payloads_.size());
      if (!payload.ok()) return payload.status();
      if (absl::Status status = Place(product, *payload); !status.ok()) return status;
      payloads_.push_back(*std::move(payload));
    }
    return absl::OkStatus();
  }

  // Puts the operands where the product, or else the flag, wants them; on each client's server, in
  // each client's session.
  absl::Status Place(const LoadProduct& product, Payload& payload) {
    const OperandPlace* const place =
        FindOperandPlace(product.operands.empty() ? flags_.operands : product.operands);
    if (place == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--operands: got \"", flags_.operands, "\", want a place of the help"));
    }
    for (size_t i = 0; i < targets_.clients.size(); ++i) {
      if (absl::Status status = CheckStop(stop_); !status.ok()) return status;
      if (place->keeps_ad && readers_[i] == nullptr) {
        ClientOptions options;
        absl::Status applied = ApplySecurityFlags(flags_.security, options);
        if (!applied.ok()) return applied;
        auto reader = Client::Create(address_of_client_[i], options);
        if (!reader.ok()) return reader.status();
        readers_[i] = std::make_shared<Client>(*std::move(reader));
      }
      absl::Status status =
          PlaceOperands(*place, product, targets_.clients[i], readers_[i], payload);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  void Describe() {
    report_.version = GEMMD_VERSION;
    report_.started = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
    report_.command = flags_.command;
    report_.channels = flags_.channels;
    report_.mix = !flags_.shape.empty()      ? plan_.mix[0].name
                  : !flags_.mix_path.empty() ? flags_.mix_path
                  : flags_.profile.empty()   ? "small"
                                             : flags_.profile;
    report_.operands = absl::StrCat(flags_.operands, " ", flags_.values);
    report_.owners = flags_.owners;
    const bool is_open = std::holds_alternative<OpenLoop>(plan_.steps[0].step.loop);
    report_.arrivals = !is_open                      ? "closed loop"
                       : !flags_.replay_path.empty() ? "open loop, replayed"
                       : flags_.arrivals == "poisson"
                           ? absl::StrCat("open loop, Poisson with seed ", flags_.seed)
                           : "open loop, constant";
    report_.warmup_s = static_cast<double>(plan_.steps[0].step.warmup_ns) * 1e-9;
    report_.operation_unit = OperationUnit(plan_.mix);
    for (const LoadProduct& product : plan_.mix) report_.products.push_back(product.name);
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
                          [this](const LoadInterval& interval, const CallsByCode& calls_by_code) {
                            view_.Show(interval, calls_by_code);
                          });
    view_.EndStep();
    step.verified = verifier.Finish(stop_);
    return step;
  }

  void AddWarnings() {
    ReportStep& step = report_.steps.back();
    step.warnings = WarningsOf(step, report_.is_same_machine);
  }

  void Search(const SloObjective& objective) {
    const NamedStep& first = plan_.steps[0];
    SloPlan plan;
    plan.first_rate = first.target;
    plan.window_s = static_cast<double>(first.step.duration_ns) * 1e-9 / plan.windows;
    SloFindings& findings = report_.slo.emplace();
    findings.objective = objective.text;
    findings.rule = SloRule(objective, plan);
    const std::vector<SloTrial> trials = SearchRate(plan, [&](double rate) {
      auto trial = TryRate(objective, plan, rate);
      findings.was_interrupted = !trial.has_value();
      return trial;
    });
    findings.rate = HighestThatHolds(trials);
    for (const SloTrial& trial : trials) {
      findings.trials.push_back(absl::StrFormat(
          "%.1f/s %s: %s", trial.rate, trial.holds ? "holds" : "does not hold", trial.what));
    }
  }

  // One trial, all windows of which go into the report as one step; none where a stop leaves open
  // whether the rate holds.
  std::optional<SloTrial> TryRate(const SloObjective& objective, const SloPlan& plan, double rate) {
    NamedStep window = plan_.steps[0];
    OpenLoop& loop = std::get<OpenLoop>(window.step.loop);
    loop.arrivals.rate = {.from = rate, .to = rate};
    window.step.duration_ns =
        std::max<int64_t>(1, std::llround(plan.WindowAt(rate, objective) * 1e9));
    window.target = rate;
    SloTrial trial = {.rate = rate, .holds = true};
    for (int i = 0; i < plan.windows && trial.holds; ++i) {
      if (stop_.load() > 0) return std::nullopt;
      window.name = absl::StrFormat("%.1f/s, window %d", rate, i + 1);
      // Each window has arrivals of its own.
      loop.arrivals.seed = flags_.seed + static_cast<uint64_t>(i);
      ReportStep step = RunStep(window);
      const std::string why = WhyWindowFails(objective, step.result, step.verified);
      trial.holds = why.empty();
      trial.is_last = step.verified.wrong > 0;
      trial.what = absl::StrFormat(
          "window %d: %s", i + 1,
          trial.holds ? FormatNanoseconds(step.result.tally.latency.ValueAt(objective.fraction))
                      : why);
      const bool was_interrupted = step.result.was_interrupted;
      if (i == 0) {
        step.name = absl::StrFormat("%.1f/s", rate);
        report_.steps.push_back(std::move(step));
      } else {
        Append(report_.steps.back(), step);
      }
      AddWarnings();
      if (was_interrupted) return std::nullopt;
    }
    return trial;
  }

  const LoadFlags& flags_;
  const SessionPlan& plan_;
  const StopRequests& stop_;
  LiveView& view_;
  const MixPicker picker_;
  LoadTargets targets_;
  std::vector<std::string> address_of_client_;
  std::vector<std::shared_ptr<Client>> readers_;  // One for each client whose results stay.
  std::vector<Payload> payloads_;  // Goes before the clients, so that its tensors are deleted.
  LoadReport report_;
};

}  // namespace

absl::StatusOr<LoadReport> RunSession(const LoadFlags& flags, const SessionPlan& plan,
                                      const StopRequests& stop, LiveView& view) {
  Session session(flags, plan, stop, view);
  if (absl::Status status = session.Prepare(); !status.ok()) return status;
  return session.Run();
}

}  // namespace gemmd
