// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/product_runner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_join.h"
#include "kernels/catalog.h"
#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/scheduling/flow.h"
#include "server/scheduling/time_rule.h"
#include "server/system/log.h"

namespace gemmd {
namespace {

// A caller may have so many times as many requests inside as there are places free: alone it gets
// seven eighths of them, and whoever comes next finds one.
constexpr int64_t kShare = 7;

// What is remembered of a request until it is answered.
struct InFlight {
  Arrival arrival;
  int64_t admitted_ns = 0;
  Problem problem;
  const Kernel* kernel = nullptr;
  const ServedDevice* served = nullptr;
  std::string_view device;
  int64_t predicted_ns = 0;
};

// The timing so far: the last stage is still to come.
ProductTiming TimingOf(const JobResult& result, const InFlight& in_flight) {
  ProductTiming timing;
  timing[Stage::kReceive] = in_flight.admitted_ns - in_flight.arrival.arrived_ns;
  timing[Stage::kQueue] = result.queue_ns;
  timing[Stage::kCopyIn] = result.outcome.copy_in_ns;
  timing[Stage::kCompute] = result.outcome.compute_ns;
  timing[Stage::kCopyOut] = result.outcome.copy_out_ns;
  return timing;
}

Completion CompletionOf(const ProductOutcome& outcome, size_t device) {
  const Problem& problem = outcome.problem;
  return {.device = device,
          .kernel = outcome.kernel,
          .code = outcome.status.code(),
          .timing = outcome.timing,
          .operations = Operations(problem),
          .bytes_read = BytesRead(problem),
          .bytes_written = BytesWritten(problem),
          .batch = problem.batch};
}

// Gives " trace_id=... span_id=... parent_id=...", or nothing where the caller has no trace.
std::string TraceFields(const std::optional<TraceSpan>& span) {
  if (!span) return "";
  return Concat(" trace_id=", LogValue(span->trace_id), " span_id=", LogValue(span->span_id),
                " parent_id=", LogValue(span->parent_id));
}

void LogRefusal(const Arrival& arrival, const absl::Status& status) {
  if (!spdlog::should_log(spdlog::level::debug)) return;
  spdlog::debug("event=refusal id={} status={} reason={} peer={}{}", LogValue(arrival.request_id),
                absl::StatusCodeToString(status.code()), LogValue(std::string(status.message())),
                LogValue(arrival.peer), TraceFields(arrival.span));
}

// Whether the operator should see it at once, because the caller can do nothing about it.
bool IsFailure(absl::StatusCode code) {
  return code == absl::StatusCode::kAborted || code == absl::StatusCode::kDataLoss ||
         code == absl::StatusCode::kInternal || code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kUnknown;
}

void LogRequest(const InFlight& in_flight, const JobResult& result, int64_t now_ns) {
  const absl::Status& status = result.outcome.status;
  const auto level = IsFailure(status.code()) ? spdlog::level::warn : spdlog::level::debug;
  if (!spdlog::should_log(level)) return;
  spdlog::log(level,
              "event=request id={} problem={} kernel={} device={} status={} reason={} queue_ns={} "
              "copy_in_ns={} compute_ns={} copy_out_ns={} total_ns={} peer={}{}",
              LogValue(in_flight.arrival.request_id), LogValue(Describe(in_flight.problem)),
              in_flight.kernel->name, in_flight.device, absl::StatusCodeToString(status.code()),
              LogValue(std::string(status.message())), result.queue_ns, result.outcome.copy_in_ns,
              result.outcome.compute_ns, result.outcome.copy_out_ns,
              now_ns - in_flight.arrival.arrived_ns, LogValue(in_flight.arrival.peer),
              TraceFields(in_flight.arrival.span));
}

// Shows the tensor of D to its owner.
void KeepResult(ProductTensors& tensors, ProductOutcome& outcome) {
  absl::StatusOr<std::optional<TensorState>> kept = tensors.Finish(outcome.status.ok());
  if (kept.ok()) {
    outcome.tensor = *std::move(kept);
  } else {
    outcome.status = kept.status();
  }
}

absl::Status NoSuchDevice(std::string_view name, const std::vector<ServedDevice>& devices) {
  const auto append_name = [](std::string* names, const ServedDevice& served) {
    *names += served.device->info().name;
  };
  return absl::NotFoundError(
      GotWant("device", Shown(name), Concat("one of ", absl::StrJoin(devices, ", ", append_name))));
}

}  // namespace

ProductRunner::ProductRunner(const std::vector<ServedDevice>& devices, Scheduler& scheduler,
                             Admission& admission, Stats& stats, const Clock& clock,
                             int64_t max_message_bytes, TensorStore* tensors)
    : devices_(devices),
      scheduler_(scheduler),
      admission_(admission),
      stats_(stats),
      clock_(clock),
      max_message_bytes_(max_message_bytes),
      tensors_(tensors),
      correction_(devices) {}

absl::StatusOr<ProductRunner::Placement> ProductRunner::FindPlace(
    const ParsedRequest& parsed) const {
  const Kernel* const wanted = parsed.constraints.kernel;
  const auto is_of_kind = [&](const ServedDevice& served) {
    return wanted == nullptr || served.device->info().kind == wanted->device_kind;
  };
  Placement place;
  for (const ServedDevice& served : devices_) {
    const DeviceInfo& info = served.device->info();
    if (!parsed.device.empty() && info.name != parsed.device) continue;
    const Kernel* const kernel = FindBest(Catalog(info.kind), parsed.job.problem,
                                          parsed.constraints, served.device->profile());
    // A device of the wanted kernel's kind says best why the kernel does not run the product.
    const bool says_best =
        place.served == nullptr || (is_of_kind(served) && !is_of_kind(*place.served));
    if (kernel != nullptr || says_best) place = {&served, kernel};
    if (kernel != nullptr) break;
  }
  if (place.served == nullptr) return NoSuchDevice(parsed.device, devices_);
  if (parsed.device.empty() && parsed.tensors != nullptr) place = NearTensors(parsed, place);
  RETURN_IF_ERROR(place.served->readiness());
  return place;
}

// Bringing a tensor to a GPU takes longer than most products with it.
ProductRunner::Placement ProductRunner::NearTensors(const ParsedRequest& parsed,
                                                    const Placement& first) const {
  const DeviceInfo& wanted = first.served->device->info();
  if (wanted.kind != DeviceKind::kCuda || first.kernel == nullptr) return first;
  Placement nearest = first;
  int64_t most_bytes = parsed.tensors->BytesOn(wanted.name);
  for (const ServedDevice& served : devices_) {
    const DeviceInfo& info = served.device->info();
    const bool is_equal = info.kind == wanted.kind && info.description == wanted.description;
    if (!is_equal || !served.readiness().ok()) continue;
    const int64_t bytes = parsed.tensors->BytesOn(info.name);
    if (bytes <= most_bytes) continue;
    const Kernel* const kernel = FindBest(Catalog(info.kind), parsed.job.problem,
                                          parsed.constraints, served.device->profile());
    if (kernel == nullptr) continue;
    most_bytes = bytes;
    nearest = {&served, kernel};
  }
  return nearest;
}

// A request that no free room would be enough for.
absl::Status ProductRunner::CheckAdmissible(int64_t bytes) const {
  const int64_t most_bytes = admission_.limits().max_bytes;
  if (bytes <= most_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(Concat("queue: the request needs ", bytes, " bytes, at most ",
                                             most_bytes, " are admitted (--max-queued-bytes)"));
}

absl::StatusOr<Admission::Ticket> ProductRunner::Hold(int64_t message_bytes,
                                                      const Arrival& arrival) {
  if (const absl::Status status = CheckAdmissible(message_bytes); !status.ok()) {
    stats_.AddRefusal(ReasonOf(status));
    LogRefusal(arrival, status);
    return status;
  }
  absl::StatusOr<Admission::Ticket> ticket = admission_.Hold(message_bytes);
  if (ticket.ok()) return ticket;
  LogRefusal(arrival, ticket.status());
  if (!absl::IsResourceExhausted(ticket.status())) return ticket;
  // Which device the request is for is not known yet: the first one to be done makes room.
  int64_t backlog_ns = std::numeric_limits<int64_t>::max();
  for (const ServedDevice& served : devices_) {
    backlog_ns = std::min(backlog_ns, scheduler_.load(*served.device).backlog_ns);
  }
  return WithRetryAfterMs(ticket.status(), RetryMs(backlog_ns));
}

absl::StatusOr<PreparedProduct> ProductRunner::Prepare(absl::StatusOr<ParsedRequest> parsed,
                                                       int64_t message_bytes) const {
  PreparedProduct product;
  ASSIGN_OR_RETURN(product.parsed, std::move(parsed));
  RETURN_IF_ERROR(Place(product));
  const Job& job = product.parsed.job;
  const ProductTensors* const tensors = product.parsed.tensors.get();
  // Tensors are charged to their owner.
  const int64_t resident_bytes =
      tensors == nullptr ? 0 : tensors->resident_bytes() - tensors->copied_bytes();
  const int64_t d_bytes = tensors != nullptr && tensors->takes_d() ? 0 : job.d_bytes;
  // A GPU's is its own memory, whose bounds the worker keeps.
  const int64_t workspace_bytes =
      job.kernel->device_kind == DeviceKind::kCuda ? 0 : job.workspace_bytes;
  product.bytes = std::max(message_bytes, BytesRead(job.problem) - resident_bytes);
  if (__builtin_add_overflow(product.bytes, d_bytes, &product.bytes) ||
      __builtin_add_overflow(product.bytes, workspace_bytes, &product.bytes)) {
    return absl::ResourceExhaustedError("queue: the request needs more than 2^63 bytes");
  }
  RETURN_IF_ERROR(CheckAdmissible(product.bytes));
  return product;
}

// Chooses device and kernel and completes the job with the sizes that follow from them.
absl::Status ProductRunner::Place(PreparedProduct& product) const {
  Job& job = product.parsed.job;
  ASSIGN_OR_RETURN(const Placement place, FindPlace(product.parsed));
  product.served = place.served;
  job.kernel = place.kernel;
  job.is_kernel_given = product.parsed.constraints.kernel != nullptr;
  const DeviceProfile& profile = product.served->device->profile();
  if (job.kernel == nullptr) {
    return Choose(Catalog(profile.target.kind), job.problem, product.parsed.constraints, profile)
        .status();
  }
  RETURN_IF_ERROR(product.served->device->CheckSize(job.problem));
  job.d_bytes = BytesWritten(job.problem);
  const bool is_sent = product.parsed.tensors == nullptr || !product.parsed.tensors->takes_d();
  if (is_sent && job.d_bytes > max_message_bytes_ - kAnswerOverheadBytes) {
    return absl::ResourceExhaustedError(Concat("d: the result takes ", job.d_bytes,
                                               " bytes, a message holds at most ",
                                               max_message_bytes_ - kAnswerOverheadBytes));
  }
  ASSIGN_OR_RETURN(job.workspace_bytes, job.kernel->workspace_bytes(job.problem));
  product.predicted_ns =
      PredictedNs(*job.kernel, job.problem, profile) + PredictedCopyNs(job.problem, profile);
  product.expected_ns = ExpectedNs(*product.served, *job.kernel, job.problem, product.predicted_ns);
  return absl::OkStatus();
}

// Refuses a product that cannot be in time.
absl::Status ProductRunner::RefuseTooLate(const PreparedProduct& product, const Arrival& arrival) {
  TimeRefusal refusal =
      scheduler_.Check(*product.served->device, FlowOf(arrival.peer), product.parsed.priority,
                       product.predicted_ns, product.expected_ns, arrival.deadline_ns);
  if (!refusal.status.ok()) stats_.AddRefusal(refusal.reason);
  return std::move(refusal.status);
}

// Refuses the product of a caller that would leave no place for another one.
absl::Status ProductRunner::RefuseBeyondShare(std::string_view flow) {
  const int64_t inside = admission_.load().requests;
  const int64_t free = admission_.limits().max_requests - inside;
  if (free <= 0 || inside < kShare * free) return absl::OkStatus();
  const int64_t own = scheduler_.InsideOf(flow);
  if (own < kShare * free) return absl::OkStatus();
  stats_.AddRefusal(RefusalReason::kShare);
  return absl::ResourceExhaustedError(Concat("queue: the caller has ", own, " requests inside, ",
                                             free, " of ", admission_.limits().max_requests,
                                             " places are kept for others"));
}

absl::Status ProductRunner::Admit(const PreparedProduct& product, const Arrival& arrival,
                                  Admission::Ticket& ticket) {
  // A server that drains says so, whatever else it would say.
  const bool is_closed = admission_.closed();
  if (!is_closed) RETURN_IF_ERROR(RefuseTooLate(product, arrival));
  absl::Status refused = is_closed ? absl::OkStatus() : RefuseBeyondShare(FlowOf(arrival.peer));
  if (refused.ok()) {
    refused = admission_.Admit(ticket, product.bytes);
    if (!absl::IsResourceExhausted(refused)) return refused;
  }
  const int64_t backlog_ns = scheduler_.load(*product.served->device).backlog_ns;
  return WithRetryAfterMs(std::move(refused), RetryMs(backlog_ns));
}

absl::StatusOr<JobId> ProductRunner::Start(absl::StatusOr<ParsedRequest> parsed, Arrival arrival,
                                           Admission::Ticket& ticket, ProductCaller caller) {
  absl::StatusOr<PreparedProduct> prepared = Prepare(std::move(parsed), ticket.bytes());
  if (!prepared.ok()) {
    stats_.AddRefusal(ReasonOf(prepared.status()));
    LogRefusal(arrival, prepared.status());
    return prepared.status();
  }
  if (const absl::Status status = Admit(*prepared, arrival, ticket); !status.ok()) {
    LogRefusal(arrival, status);
    return status;
  }
  return scheduler_.Submit(
      MakeSubmission(*std::move(prepared), std::move(arrival), std::move(caller)));
}

Submission ProductRunner::MakeSubmission(PreparedProduct product, Arrival arrival,
                                         ProductCaller caller) {
  Job& job = product.parsed.job;
  InFlight in_flight = {.arrival = std::move(arrival),
                        .admitted_ns = clock_.NowNs(),
                        .problem = job.problem,
                        .kernel = job.kernel,
                        .served = product.served,
                        .device = product.served->device->info().name,
                        .predicted_ns = product.predicted_ns};
  Submission submission;
  submission.device = product.served->device;
  submission.job = job;
  submission.bytes = BytesRead(job.problem) + job.d_bytes;
  submission.predicted_ns = product.predicted_ns;
  submission.expected_ns = product.expected_ns;
  submission.deadline_ns = in_flight.arrival.deadline_ns;
  submission.flow = FlowOf(in_flight.arrival.peer);
  submission.priority = product.parsed.priority;
  submission.done = [this, in_flight = std::move(in_flight),
                     pieces = std::move(product.parsed.pieces),
                     tensors = std::move(product.parsed.tensors),
                     caller = std::move(caller)](JobResult result) mutable {
    const int64_t done_ns = clock_.NowNs();
    if (result.outcome.kernel != nullptr) in_flight.kernel = result.outcome.kernel;
    ProductOutcome outcome = {.status = result.outcome.status,
                              .problem = in_flight.problem,
                              .kernel = in_flight.kernel,
                              .device = in_flight.device,
                              .d = std::move(result.outcome.d),
                              .timing = {}};
    if (tensors != nullptr) KeepResult(*tensors, outcome);
    if (outcome.status.ok()) {
      const JobOutcome& took = result.outcome;
      // Several that ran as one say nothing of what one of them would have taken.
      if (result.joined == 1) {
        correction_.Observe(IndexOf(*in_flight.served), *in_flight.kernel, in_flight.problem,
                            in_flight.predicted_ns,
                            took.copy_in_ns + took.compute_ns + took.copy_out_ns);
      }
      outcome.timing = TimingOf(result, in_flight);
      caller.prepare(outcome);
      const int64_t now_ns = clock_.NowNs();
      outcome.timing[Stage::kSendPrepare] = now_ns - done_ns;
      outcome.timing.total_ns = now_ns - in_flight.arrival.arrived_ns;
    }
    stats_.AddCompletion(
        CompletionOf(outcome, static_cast<size_t>(in_flight.served - devices_.data())));
    LogRequest(in_flight, result, clock_.NowNs());
    std::move(caller.done)(std::move(outcome));
  };
  return submission;
}

}  // namespace gemmd
