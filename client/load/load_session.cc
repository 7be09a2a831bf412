// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_session.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/load/verifier.h"
#include "client/output_file.h"
#include "client/terminal/option.h"
#include "client/terminal/text.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/registry.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

// Parses seconds, or a time such as 500ms; at most a week.
absl::StatusOr<int64_t> TimeOfFlag(absl::string_view flag, const std::string& text,
                                   absl::Duration min) {
  const absl::Duration time = ParseTime(text).value_or(absl::InfiniteDuration());
  if (time >= min && time <= absl::Hours(24 * 7)) return absl::ToInt64Nanoseconds(time);
  return absl::InvalidArgumentError(absl::StrCat(flag, ": got \"", text, "\", want ",
                                                 absl::FormatDuration(min),
                                                 " to a week: seconds, or a time such as 500ms"));
}

absl::StatusOr<LoadStep> StepWithoutLoop(const LoadFlags& flags) {
  LoadStep step;
  ASSIGN_OR_RETURN(const auto warmup, TimeOfFlag("--warmup", flags.warmup, absl::ZeroDuration()));
  const bool is_endless = flags.duration.empty() && flags.count > 0;
  const std::string duration = is_endless               ? "168h"
                               : flags.duration.empty() ? "10s"
                                                        : flags.duration;
  ASSIGN_OR_RETURN(const auto length, TimeOfFlag("--duration", duration, absl::Milliseconds(1)));
  ASSIGN_OR_RETURN(const auto timeout,
                   TimeOfFlag("--timeout", flags.timeout, absl::Milliseconds(1)));
  ASSIGN_OR_RETURN(const auto interval,
                   TimeOfFlag("--interval", flags.interval, absl::Milliseconds(10)));
  step.warmup_ns = warmup;
  step.duration_ns = length;
  step.count = flags.count;
  step.timeout = absl::Nanoseconds(timeout);
  step.interval_ns = interval;
  return step;
}

absl::StatusOr<NamedStep> ReplayStep(const LoadFlags& flags, LoadStep step) {
  ASSIGN_OR_RETURN(const auto text, ReadTextFile(flags.replay_path));
  auto gaps = ParseGaps(text);
  if (!gaps.ok()) return Prefixed(flags.replay_path, gaps.status());
  step.loop = OpenLoop{.arrivals = {.seed = flags.seed, .replay_gaps_ns = *std::move(gaps)},
                       .max_in_flight = flags.max_in_flight};
  return NamedStep{absl::StrCat("replay of ", flags.replay_path), 0, std::move(step)};
}

NamedStep OpenStep(const LoadFlags& flags, LoadStep step, double rate) {
  ArrivalPlan arrivals = {.rate = {.from = rate, .to = rate},
                          .is_poisson = flags.arrivals == "poisson",
                          .seed = flags.seed};
  std::string name = absl::StrFormat("%g/s", rate);
  if (flags.ramp_to > 0) {
    arrivals.rate.to = flags.ramp_to;
    arrivals.rate.ramp_ns = step.warmup_ns + step.duration_ns;
    absl::StrAppendFormat(&name, " to %g/s", flags.ramp_to);
  }
  step.loop = OpenLoop{.arrivals = std::move(arrivals), .max_in_flight = flags.max_in_flight};
  return {std::move(name), rate, std::move(step)};
}

}  // namespace

absl::StatusOr<Mix> MixOf(const LoadFlags& flags) {
  absl::StatusOr<Mix> mix = Mix();
  const bool has_files = !flags.a_path.empty() || !flags.b_path.empty();
  if (!flags.shape.empty() || has_files) {
    LoadProduct product;
    if (!flags.shape.empty()) {
      product.m = flags.shape[0];
      product.n = flags.shape[1];
      product.k = flags.shape[2];
    }
    // 0: taken from the file.
    product.batch = flags.shape.empty() ? 0 : flags.batch;
    product.type =
        TypeOf(flags.type, has_files ? v1::ELEMENT_TYPE_UNSPECIFIED : v1::ELEMENT_TYPE_F32);
    product.a_path = flags.a_path;
    product.b_path = flags.b_path;
    product.output_type = TypeOf(flags.output_type);
    product.fast_accumulation = flags.fast_accumulation;
    product.is_sparse = flags.sparse;
    product.b_order = OrderOf(flags.b_order);
    if (!has_files) product.name = NameOf(product);
    mix->push_back(product);
  } else if (!flags.mix_path.empty()) {
    ASSIGN_OR_RETURN(const auto text, ReadTextFile(flags.mix_path));
    mix = ParseMix(text);
    if (!mix.ok()) return Prefixed(flags.mix_path, mix.status());
  } else {
    mix = FindProfile(flags.profile.empty() ? "small" : flags.profile);
    if (!mix.ok()) return mix.status();
  }
  for (LoadProduct& product : *mix) {
    if (product.kernel.empty()) product.kernel = flags.kernel;
    if (product.device.empty()) product.device = flags.device;
  }
  MakeNamesUnique(*mix);
  return mix;
}

absl::StatusOr<std::vector<NamedStep>> StepsOf(const LoadFlags& flags) {
  ASSIGN_OR_RETURN(const auto step, StepWithoutLoop(flags));
  std::vector<NamedStep> steps;
  if (!flags.replay_path.empty()) {
    ASSIGN_OR_RETURN(auto replay, ReplayStep(flags, step));
    steps.push_back(std::move(replay));
  } else if (!flags.slo.empty()) {
    if (flags.rates.size() > 1 || flags.ramp_to > 0 || flags.count > 0) {
      return absl::InvalidArgumentError(
          "--slo: got several rates, --ramp-to or --count, want at most one rate to begin with");
    }
    steps.push_back(OpenStep(flags, step, flags.rates.empty() ? 100 : flags.rates[0]));
  } else if (!flags.rates.empty()) {
    if (flags.ramp_to > 0 && flags.count > 0 && flags.duration.empty()) {
      return absl::InvalidArgumentError("--ramp-to: got no --duration, want that of the ramp");
    }
    for (const double rate : flags.rates) steps.push_back(OpenStep(flags, step, rate));
  } else {
    const std::vector<int> one = {1};
    for (const int calls : flags.concurrency.empty() ? one : flags.concurrency) {
      NamedStep closed = {absl::StrCat(calls, " in flight"), static_cast<double>(calls), step};
      closed.step.loop = ClosedLoop{.concurrency = calls};
      steps.push_back(std::move(closed));
    }
  }
  return steps;
}

absl::StatusOr<SessionPlan> PlanSession(const LoadFlags& flags) {
  SessionPlan plan;
  ASSIGN_OR_RETURN(plan.mix, MixOf(flags));
  for (LoadProduct& product : plan.mix) {
    ASSIGN_OR_RETURN(auto given, ReadOperands(product));
    plan.given.push_back(std::move(given));
    if (product.name.empty()) product.name = NameOf(product);
  }
  ASSIGN_OR_RETURN(plan.steps, StepsOf(flags));
  if (flags.slo.empty()) return plan;
  ASSIGN_OR_RETURN(plan.objective, ParseSlo(flags.slo));
  return plan;
}

namespace {

constexpr double kWindowsOfDuration = 3;  // Windows of a search per --duration.

absl::Status CheckStop(const StopRequests& stop) {
  if (stop.load() == 0) return absl::OkStatus();
  return absl::CancelledError("interrupted before the first call");
}

absl::StatusOr<Client> Connect(const LoadFlags& flags, const std::string& address,
                               const StopRequests& stop) {
  ClientOptions options;
  RETURN_IF_ERROR(ApplySecurityFlags(flags.security, options));
  options.channels = flags.channels;
  options.max_attempts = 1 + flags.retries;
  options.wait_for_ready = flags.wait_for_ready;
  options.max_message_bytes = std::numeric_limits<int32_t>::max();
  // Balances calls over all servers behind the name.
  options.channel_arguments.SetLoadBalancingPolicyName("round_robin");
  ASSIGN_OR_RETURN(auto client, Client::Create(address, options));
  // Connects before the load starts; other errors do not matter here.
  for (int i = 0; i < flags.channels; ++i) {
    RETURN_IF_ERROR(CheckStop(stop));
    const auto health = client.CheckHealth("", {.timeout = absl::Seconds(5)});
    if (absl::IsUnavailable(health.status()) || absl::IsDeadlineExceeded(health.status())) {
      return Prefixed(address, health.status());
    }
  }
  return client;
}

// The server's description of itself; empty if it lacks these calls.
ReportedServer DescribeServer(const std::string& address, Client& client) {
  constexpr absl::Duration kPatience = absl::Seconds(5);
  ReportedServer server = {.address = address};
  if (const auto info = client.GetServerInfo({.timeout = kPatience}); info.ok()) {
    server.version = info->version();
  }
  if (const auto listed = client.ListDevices({.timeout = kPatience}); listed.ok()) {
    for (const v1::Device& device : listed->devices()) {
      server.devices.push_back(DescribeDevice(device));
    }
  }
  return server;
}

// Keeps the default device, which comes first, and devices that answered calls.
void KeepUsedDevices(LoadReport& report) {
  std::set<std::string> used;
  for (const ReportStep& step : report.steps) {
    for (const KernelTally& kernel : step.result.tally.kernels) used.insert(kernel.device);
  }
  for (ReportedServer& server : report.servers) {
    if (server.devices.empty()) continue;
    used.insert(server.devices[0].name);
    std::erase_if(server.devices,
                  [&](const ReportedDevice& device) { return !used.contains(device.name); });
  }
}

// Everything that the steps of one session share.
class Session {
 public:
  Session(const LoadFlags& flags, const SessionPlan& plan, const StopRequests& stop, LiveView& view,
          LiveMetrics* metrics)
      : flags_(flags),
        plan_(plan),
        stop_(stop),
        view_(view),
        metrics_(metrics),
        picker_(plan.mix, flags.seed) {
    targets_.payloads = &payloads_;
    targets_.picker = &picker_;
    targets_.streams = flags.streams;
  }

  absl::Status Prepare() {
    Describe();
    const std::string host_name = HostName();
    for (const std::string& address : flags_.addresses) {
      for (int owner = 0; owner < flags_.owners; ++owner) {
        ASSIGN_OR_RETURN(auto client, Connect(flags_, address, stop_));
        targets_.clients.push_back(std::move(client));
        address_of_client_.push_back(address);
      }
      report_.servers.push_back(DescribeServer(address, targets_.clients.back()));
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
    KeepUsedDevices(report_);
    return std::move(report_);
  }

 private:
  absl::Status MakePayloads() {
    const OperandValues values =
        flags_.values == "normal" ? OperandValues::kNormal : OperandValues::kIntegers;
    for (const LoadProduct& product : plan_.mix) {
      RETURN_IF_ERROR(CheckStop(stop_));
      ASSIGN_OR_RETURN(auto payload, MakePayload(product, values, flags_.seed + payloads_.size(),
                                                 plan_.given[payloads_.size()]));
      RETURN_IF_ERROR(Place(product, payload));
      payloads_.push_back(std::move(payload));
    }
    return absl::OkStatus();
  }

  // Places the operands as set in the product, or else by the flag: on each client's server, in
  // each client's session.
  absl::Status Place(const LoadProduct& product, Payload& payload) {
    const OperandPlace* const place =
        FindOperandPlace(product.operands.empty() ? flags_.operands : product.operands);
    if (place == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--operands: got \"", flags_.operands, "\", want a place of the help"));
    }
    for (size_t i = 0; i < targets_.clients.size(); ++i) {
      RETURN_IF_ERROR(CheckStop(stop_));
      if (place->keeps_ad && readers_[i] == nullptr) {
        ClientOptions options;
        RETURN_IF_ERROR(ApplySecurityFlags(flags_.security, options));
        ASSIGN_OR_RETURN(auto reader, Client::Create(address_of_client_[i], options));
        readers_[i] = std::make_shared<Client>(std::move(reader));
      }
      RETURN_IF_ERROR(PlaceOperands(*place, product, targets_.clients[i], readers_[i], payload));
    }
    return absl::OkStatus();
  }

  void Describe() {
    report_.version = GEMMD_VERSION;
    report_.client = ThisMachine();
    report_.started = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
    report_.command = flags_.command;
    report_.channels = flags_.channels;
    const bool is_one = flags_.profile.empty() && flags_.mix_path.empty() && plan_.mix.size() == 1;
    report_.mix = is_one                     ? plan_.mix[0].name
                  : !flags_.mix_path.empty() ? flags_.mix_path
                  : flags_.profile.empty()   ? "small"
                                             : flags_.profile;
    report_.operands = absl::StrCat(flags_.operands, " ", ValuesText());
    report_.owners = flags_.owners;
    report_.streams = flags_.streams;
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

  // The distribution of operand values: from files, or else from the flag.
  std::string ValuesText() const {
    size_t random = 0;
    size_t from_files = 0;
    for (const LoadProduct& product : plan_.mix) {
      for (const std::string* path : {&product.a_path, &product.b_path}) {
        ++(path->empty() ? random : from_files);
      }
    }
    if (from_files == 0) return flags_.values;
    return random == 0 ? "from files" : absl::StrCat("from files and ", flags_.values);
  }

  ReportStep RunStep(const NamedStep& named) {
    Verifier verifier(payloads_, flags_.verified_share, flags_.seed);
    targets_.verifier = &verifier;
    view_.BeginStep(named.name);
    ReportStep step;
    step.name = named.name;
    step.is_open = std::holds_alternative<OpenLoop>(named.step.loop);
    step.target = named.target;
    if (metrics_ != nullptr) {
      metrics_->BeginStep(step.name, step.is_open, step.target);
    }
    step.result = RunLoad(targets_, named.step, stop_,
                          [this](const LoadInterval& interval, const IntervalTally& calls) {
                            view_.Show(interval, calls.calls_by_code);
                            if (metrics_ != nullptr) metrics_->Add(interval, calls);
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
    plan.window_s = static_cast<double>(first.step.duration_ns) * 1e-9 / kWindowsOfDuration;
    SloFindings& findings = report_.slo.emplace();
    findings.objective = objective.text;
    findings.rule = SloRule(objective, plan);
    findings.answer = SearchRate(plan, [&](double rate) {
      return TryRate(objective, rate, plan.WindowAt(rate, objective));
    });
  }

  // Runs one window; nullopt if a stop leaves its result undecided. The report shows all windows of
  // a rate as one step, without discarded windows.
  std::optional<SloWindow> TryRate(const SloObjective& objective, double rate, double window_s) {
    if (stop_.load() > 0) return std::nullopt;
    NamedStep window = plan_.steps[0];
    OpenLoop& loop = std::get<OpenLoop>(window.step.loop);
    loop.arrivals.rate = {.from = rate, .to = rate};
    // Each window has different arrivals.
    loop.arrivals.seed = flags_.seed + windows_++;
    window.step.duration_ns = std::max<int64_t>(1, std::llround(window_s * 1e9));
    window.target = rate;
    window.name = absl::StrFormat("%.1f/s", rate);
    ReportStep step = RunStep(window);
    const bool was_interrupted = step.result.was_interrupted;
    const SloWindow judged = JudgeWindow(objective, rate, step.result, step.verified);
    if (was_interrupted || judged.verdict != WindowVerdict::kDiscarded) AddWindow(std::move(step));
    if (was_interrupted && judged.verdict != WindowVerdict::kHopeless) return std::nullopt;
    return judged;
  }

  void AddWindow(ReportStep window) {
    auto step = std::find_if(report_.steps.begin(), report_.steps.end(),
                             [&](const ReportStep& one) { return one.name == window.name; });
    if (step == report_.steps.end()) {
      step = report_.steps.insert(step, std::move(window));
    } else {
      step->result.Append(window.result);
      step->verified.Add(window.verified);
    }
    step->warnings = WarningsOf(*step, report_.is_same_machine);
  }

  const LoadFlags& flags_;
  const SessionPlan& plan_;
  const StopRequests& stop_;
  LiveView& view_;
  LiveMetrics* const metrics_;
  const MixPicker picker_;
  LoadTargets targets_;
  std::vector<std::string> address_of_client_;
  std::vector<std::shared_ptr<Client>> readers_;  // One for each client with resident results.
  std::vector<Payload> payloads_;  // Destroyed before the clients, so that its tensors are deleted.
  uint64_t windows_ = 0;           // Number of windows tried by a search.
  LoadReport report_;
};

}  // namespace

absl::StatusOr<LoadReport> RunSession(const LoadFlags& flags, const SessionPlan& plan,
                                      const StopRequests& stop, LiveView& view,
                                      LiveMetrics* metrics) {
  Session session(flags, plan, stop, view, metrics);
  RETURN_IF_ERROR(session.Prepare());
  return session.Run();
}

}  // namespace gemmd
