// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/product_runner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/scheduling/caller_rules.h"
#include "server/scheduling/product_log.h"
#include "server/scheduling/time_rule.h"

namespace gemmd {
namespace {

// A caller may have so many times as many requests inside as there are places free: alone it gets
// seven eighths of them, and whoever comes next finds one. In the same way a connection may have so
// many times as many as its caller may still have.
constexpr int64_t kShare = 7;

// The requests that may still come of somebody who has so many inside and takes free places only.
int64_t PlacesLeft(int64_t own, int64_t free) {
  return std::max((kShare * free - own + kShare) / (kShare + 1), int64_t{0});
}

// The timing so far: the last stage is still to come.
ProductTiming TimingOf(const JobResult& result, int64_t receive_ns) {
  ProductTiming timing;
  timing[Stage::kReceive] = receive_ns;
  timing[Stage::kQueue] = result.queue_ns;
  timing[Stage::kCopyIn] = result.outcome.copy_in_ns;
  timing[Stage::kCompute] = result.outcome.compute_ns;
  timing[Stage::kCopyOut] = result.outcome.copy_out_ns;
  return timing;
}

Completion CompletionOf(const ProductOutcome& outcome, size_t device, int64_t joined) {
  const Problem& problem = outcome.problem;
  return {.device = device,
          .kernel = outcome.kernel,
          .code = outcome.status.code(),
          .timing = outcome.timing,
          .joined = std::max<int64_t>(joined, 1),
          .operations = Operations(problem),
          .bytes_read = BytesRead(problem),
          .bytes_written = BytesWritten(problem),
          .batch = problem.batch};
}

// Null where D is not checked.
std::unique_ptr<CheckedJob> CheckOf(const PreparedProduct& product, const Arrival& arrival) {
  if (product.verify.mode == VerifyMode::kNone) return nullptr;
  auto check = std::make_unique<CheckedJob>();
  check->job = product.parsed.job;
  check->served = product.served;
  check->rule = product.verify;
  check->constraints = product.parsed.constraints;
  check->device = product.parsed.device;
  check->flow = arrival.flow().caller;
  check->connection = arrival.connection;
  check->priority = product.parsed.priority;
  check->caller = arrival.caller;
  check->deadline_ns = arrival.deadline_ns;
  check->request_id = arrival.request_id;
  return check;
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

}  // namespace

struct ProductRunner::InFlight {
  Arrival arrival;
  int64_t admitted_ns = 0;
  Problem problem;
  const Kernel* kernel = nullptr;
  const ServedDevice* served = nullptr;
  std::string_view device;
  int64_t predicted_ns = 0;
  std::optional<AnswerVerification> verification = {};
};

ProductRunner::ProductRunner(const std::vector<ServedDevice>& devices, Scheduler& scheduler,
                             Admission& admission, Stats& stats, const Clock& clock,
                             int64_t max_message_bytes, TensorStore* tensors, VerifySetup verify,
                             SpanExport* spans)
    : devices_(devices),
      scheduler_(scheduler),
      admission_(admission),
      stats_(stats),
      clock_(clock),
      max_message_bytes_(max_message_bytes),
      tensors_(tensors),
      verify_(verify.options),
      correction_(devices),
      spans_(spans),
      choices_(devices.size()),
      checker_(devices, scheduler, stats, clock, verify.options, verify.log,
               std::move(verify.chip_state)) {}

// A request that no free room would be enough for.
absl::Status ProductRunner::CheckAdmissible(int64_t bytes) const {
  const int64_t most_bytes = admission_.limits().max_bytes;
  if (bytes <= most_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(Concat("queue: the request needs ", bytes, " bytes, at most ",
                                             most_bytes, " are admitted (--max-queued-bytes)"));
}

absl::StatusOr<Admission::Ticket> ProductRunner::Hold(int64_t message_bytes,
                                                      const Arrival& arrival) {
  absl::Status status = CheckMessage(message_bytes, arrival);
  if (status.ok()) status = CheckAdmissible(message_bytes);
  if (!status.ok()) {
    stats_.AddRefusal(ReasonOf(status));
    CountRefusal(arrival);
    LogRefusal(arrival, status);
    return status;
  }
  absl::StatusOr<Admission::Ticket> ticket = admission_.Hold(message_bytes);
  if (ticket.ok()) return ticket;
  CountRefusal(arrival);
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
  ASSIGN_OR_RETURN(const VerifyNeeds needs, PlanVerify(product));
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
      __builtin_add_overflow(product.bytes, workspace_bytes, &product.bytes) ||
      __builtin_add_overflow(product.bytes, needs.bytes, &product.bytes)) {
    return absl::ResourceExhaustedError("queue: the request needs more than 2^63 bytes");
  }
  RETURN_IF_ERROR(CheckAdmissible(product.bytes));
  return product;
}

// How D will be checked. Operands have to stay as they are until it has been.
absl::StatusOr<VerifyNeeds> ProductRunner::PlanVerify(PreparedProduct& product) const {
  const std::optional<VerifyRule>& asked = product.parsed.verify;
  VerifyRule rule = asked.value_or(verify_.rule);
  if (rule.rate == 0) {
    const bool is_servers = verify_.rule.mode == VerifyMode::kSampled;
    rule.rate = is_servers ? verify_.rule.rate : verify::kDefaultRate;
  }
  if (rule.mode == VerifyMode::kNone) return VerifyNeeds();
  Job& job = product.parsed.job;
  const ProductTensors* const tensors = product.parsed.tensors.get();
  const bool is_in_place = tensors != nullptr && tensors->is_in_place();
  absl::StatusOr<VerifyNeeds> needs =
      is_in_place
          ? absl::UnimplementedError(Concat("verify.mode: got ", NameOf(rule.mode),
                                            " with a D that overwrites C, want another tensor: the "
                                            "check reads C"))
          : NeedsOf(rule, *job.kernel, job.problem);
  if (!needs.ok()) {
    if (asked) return needs.status();
    product.not_verified =
        AnswerVerification{.mode = rule.mode, .reason = is_in_place ? "in_place" : "unsupported"};
    return VerifyNeeds();
  }
  product.verify = rule;
  // Tensors are read where they are.
  if (tensors != nullptr) {
    needs->bytes = std::max(needs->bytes - tensors->resident_bytes(), int64_t{0});
  }
  for (Source* const source : {&job.a, &job.b, &job.c, &job.bias, &job.a_scale, &job.b_scale}) {
    source->keeper = nullptr;
  }
  return needs;
}

// Refuses a product that cannot be in time.
absl::Status ProductRunner::RefuseTooLate(const PreparedProduct& product, const Arrival& arrival) {
  TimeRefusal refusal =
      scheduler_.Check(*product.served->device, arrival.flow(), product.parsed.priority,
                       product.predicted_ns, product.expected_ns, arrival.deadline_ns);
  if (!refusal.status.ok()) stats_.AddRefusal(refusal.reason);
  return std::move(refusal.status);
}

// Refuses the product of a caller that would leave no place for another one, or of a connection
// that would leave none for the caller's others.
absl::Status ProductRunner::RefuseBeyondShare(const FlowId& flow, int64_t inside) {
  const int64_t all = admission_.limits().max_requests;
  const int64_t free = all - inside;
  if (free <= 0 || inside < kShare * PlacesLeft(inside, free)) return absl::OkStatus();
  const FairQueue::Inside own = scheduler_.InsideOf(flow);
  const int64_t left = PlacesLeft(own.of_caller, free);
  if (left > 0 && own.of_connection < kShare * left) return absl::OkStatus();
  stats_.AddRefusal(RefusalReason::kShare);
  if (left > 0) {
    return absl::ResourceExhaustedError(
        Concat("queue: the connection has ", own.of_connection, " requests inside, ", left,
               " places of its caller are kept for others of its connections"));
  }
  return absl::ResourceExhaustedError(Concat("queue: the caller has ", own.of_caller,
                                             " requests inside, ", free, " of ", all,
                                             " places are kept for others"));
}

absl::Status ProductRunner::Admit(const PreparedProduct& product, const Arrival& arrival,
                                  Admission::Ticket& ticket) {
  // A server that drains says so, whatever else it would say.
  const Admission::Load load = admission_.load();
  absl::Status refused;
  if (!load.is_closed) {
    RETURN_IF_ERROR(RefuseTooLate(product, arrival));
    refused = RefuseBeyondShare(arrival.flow(), load.requests);
  }
  if (refused.ok()) {
    refused = admission_.Admit(ticket, product.bytes);
    if (!absl::IsResourceExhausted(refused)) return refused;
  }
  const int64_t backlog_ns = scheduler_.load(*product.served->device).backlog_ns;
  return WithRetryAfterMs(std::move(refused), RetryMs(backlog_ns));
}

absl::StatusOr<JobId> ProductRunner::Start(absl::StatusOr<ParsedRequest> parsed, Arrival arrival,
                                           Admission::Ticket& ticket, ProductCaller caller) {
  if (parsed.ok() && arrival.caller != nullptr) {
    const absl::Status status = RestrictToGrant(arrival.caller->grant, devices_, *this, *parsed);
    if (!status.ok()) parsed = status;
  }
  absl::StatusOr<PreparedProduct> prepared = Prepare(std::move(parsed), ticket.bytes());
  if (!prepared.ok()) {
    stats_.AddRefusal(ReasonOf(prepared.status()));
    CountRefusal(arrival);
    LogRefusal(arrival, ticket.bytes(), prepared.status());
    return prepared.status();
  }
  absl::Status status;
  if (arrival.caller != nullptr) {
    status = EnterMeter(*arrival.caller, *prepared, clock_.NowNs(), caller);
    if (!status.ok()) stats_.AddRefusal(RefusalReason::kShare);
  }
  if (status.ok()) status = Admit(*prepared, arrival, ticket);
  if (!status.ok()) {
    CountRefusal(arrival);
    LogRefusal(arrival, ticket.bytes(), status);
    return status;
  }
  return scheduler_.Submit(
      MakeSubmission(*std::move(prepared), std::move(arrival), std::move(caller)));
}

// Tells the caller how its product has ended.
void ProductRunner::End(InFlight& in_flight, CheckedResult checked, ProductTensors* tensors,
                        ProductCaller& caller) {
  const int64_t done_ns = clock_.NowNs();
  JobResult& result = checked.result;
  if (checked.kernel == nullptr && result.outcome.kernel != nullptr) {
    in_flight.kernel = result.outcome.kernel;
  }
  const bool is_moved = checked.kernel != nullptr && checked.kernel != in_flight.kernel;
  if (checked.kernel != nullptr) {
    in_flight.kernel = checked.kernel;
    in_flight.served = checked.served;
    in_flight.device = checked.served->device->info().name;
    in_flight.verification = checked.verification;
  }
  ProductOutcome outcome = {.status = result.outcome.status,
                            .problem = in_flight.problem,
                            .kernel = in_flight.kernel,
                            .device = in_flight.device,
                            .d = std::move(result.outcome.d),
                            .verification = in_flight.verification,
                            .timing = {}};
  if (tensors != nullptr) KeepResult(*tensors, outcome);
  ProductTiming timing = TimingOf(result, in_flight.admitted_ns - in_flight.arrival.arrived_ns);
  if (outcome.status.ok()) {
    const JobOutcome& took = result.outcome;
    // Several that ran as one say nothing of what one of them would have taken.
    if (result.joined == 1 && !is_moved) {
      correction_.Observe(IndexOf(*in_flight.served), *in_flight.kernel, in_flight.problem,
                          in_flight.predicted_ns,
                          took.copy_in_ns + took.compute_ns + took.copy_out_ns);
    }
    outcome.timing = timing;
    caller.prepare(outcome);
    const int64_t now_ns = clock_.NowNs();
    outcome.timing[Stage::kSendPrepare] = now_ns - done_ns;
    outcome.timing.total_ns = now_ns - in_flight.arrival.arrived_ns;
    timing = outcome.timing;
  } else {
    timing.total_ns = clock_.NowNs() - in_flight.arrival.arrived_ns;
  }
  stats_.AddCompletion(CompletionOf(outcome, IndexOf(*in_flight.served), result.joined));
  CountEnd(in_flight.arrival, outcome, result.joined);
  const EndedProduct ended = {.arrival = in_flight.arrival,
                              .problem = in_flight.problem,
                              .kernel = in_flight.kernel->name,
                              .device = in_flight.device,
                              .status = outcome.status,
                              .result = result,
                              .timing = timing};
  LogProduct(ended);
  if (spans_ != nullptr) spans_->Add(ended);
  std::move(caller.done)(std::move(outcome));
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
  submission.flow = in_flight.arrival.flow().caller;
  submission.connection = in_flight.arrival.connection;
  submission.has_company = in_flight.arrival.has_company;
  submission.priority = product.parsed.priority;
  if (in_flight.arrival.caller != nullptr) submission.share = in_flight.arrival.caller->grant.share;
  in_flight.verification = product.not_verified;
  if (in_flight.verification) {
    stats_.AddVerification(in_flight.verification->mode, VerifyEnd::kNotVerified, 0);
  }
  std::unique_ptr<CheckedJob> check = CheckOf(product, in_flight.arrival);
  submission.done = [this, in_flight = std::move(in_flight), check = std::move(check),
                     pieces = std::move(product.parsed.pieces),
                     tensors = std::move(product.parsed.tensors),
                     caller = std::move(caller)](JobResult result) mutable {
    if (check == nullptr || !result.outcome.status.ok()) {
      return End(in_flight, {.result = std::move(result)}, tensors.get(), caller);
    }
    checker_.Check(
        std::move(check), std::move(result),
        [this, in_flight = std::move(in_flight), pieces = std::move(pieces),
         tensors = std::move(tensors), caller = std::move(caller)](CheckedResult checked) mutable {
          End(in_flight, std::move(checked), tensors.get(), caller);
        });
  };
  return submission;
}

}  // namespace gemmd
