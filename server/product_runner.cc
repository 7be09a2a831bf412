// SPDX-License-Identifier: Apache-2.0
#include "server/product_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "kernels/catalog.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/log.h"

namespace gemmd {
namespace {

// What an answer holds beside the matrix: names, timing and lengths; generous.
constexpr int64_t kAnswerOverheadBytes = 4096;

constexpr int64_t kMaxRetryAfterMs = 10'000;

// What is remembered of a request until it is answered.
struct InFlight {
  Arrival arrival;
  int64_t admitted_ns = 0;
  Problem problem;
  std::string_view kernel;
  std::string_view device;
};

void FillTiming(const JobResult& result, const InFlight& in_flight, int64_t done_ns, int64_t now_ns,
                v1::Timing& timing) {
  timing.set_receive_ns(in_flight.admitted_ns - in_flight.arrival.arrived_ns);
  timing.set_queue_ns(result.queue_ns);
  timing.set_copy_in_ns(result.outcome.copy_in_ns);
  timing.set_compute_ns(result.outcome.compute_ns);
  timing.set_copy_out_ns(result.outcome.copy_out_ns);
  timing.set_send_prepare_ns(now_ns - done_ns);
  timing.set_total_ns(now_ns - in_flight.arrival.arrived_ns);
}

void LogRequest(const std::string& request_id, const InFlight& in_flight, const JobResult& result,
                int64_t now_ns) {
  if (!spdlog::should_log(spdlog::level::debug)) return;
  spdlog::debug(
      "event=request id={} problem={} kernel={} device={} status={} queue_ns={} copy_in_ns={} "
      "compute_ns={} copy_out_ns={} total_ns={} peer={}",
      LogValue(request_id), LogValue(Describe(in_flight.problem)), in_flight.kernel,
      in_flight.device, absl::StatusCodeToString(result.outcome.status.code()), result.queue_ns,
      result.outcome.copy_in_ns, result.outcome.compute_ns, result.outcome.copy_out_ns,
      now_ns - in_flight.arrival.arrived_ns, LogValue(in_flight.arrival.peer));
}

}  // namespace

absl::Status ServedDevice::readiness() const {
  if (canary.ok()) return device->readiness();
  return absl::UnavailableError(
      Concat("device: ", device->info().name, " is not ready: ", std::string(canary.message())));
}

ProductRunner::ProductRunner(const std::vector<ServedDevice>& devices, Scheduler& scheduler,
                             Admission& admission, const Clock& clock, int64_t max_message_bytes)
    : devices_(devices),
      scheduler_(scheduler),
      admission_(admission),
      clock_(clock),
      max_message_bytes_(max_message_bytes) {}

absl::StatusOr<const ServedDevice*> ProductRunner::FindDevice(std::string_view name) const {
  const auto found =
      std::find_if(devices_.begin(), devices_.end(), [name](const ServedDevice& served) {
        return name.empty() || served.device->info().name == name;
      });
  if (found == devices_.end()) {
    const auto append_name = [](std::string* names, const ServedDevice& served) {
      *names += served.device->info().name;
    };
    return absl::NotFoundError(
        GotWant("device", name, Concat("one of ", absl::StrJoin(devices_, ", ", append_name))));
  }
  RETURN_IF_ERROR(found->readiness());
  return &*found;
}

// Chooses device and kernel and completes the job with the sizes that follow from them.
absl::StatusOr<Placement> ProductRunner::Place(ParsedRequest& parsed) const {
  Job& job = parsed.job;
  Placement placement;
  ASSIGN_OR_RETURN(placement.served, FindDevice(parsed.device));
  const DeviceProfile& profile = placement.served->device->profile();
  ASSIGN_OR_RETURN(job.kernel,
                   Choose(Catalog(profile.target.kind), job.problem, parsed.constraints, profile));
  job.d_bytes = BytesWritten(job.problem);
  if (job.d_bytes > max_message_bytes_ - kAnswerOverheadBytes) {
    return absl::ResourceExhaustedError(Concat("d: the result takes ", job.d_bytes,
                                               " bytes, a message holds at most ",
                                               max_message_bytes_ - kAnswerOverheadBytes));
  }
  ASSIGN_OR_RETURN(job.workspace_bytes, job.kernel->workspace_bytes(job.problem));
  placement.predicted_ns =
      PredictedNs(*job.kernel, job.problem, profile) + PredictedCopyNs(job.problem, profile);
  return placement;
}

absl::StatusOr<Admission::Ticket> ProductRunner::Admit(const ParsedRequest& parsed,
                                                       const Device& device) {
  int64_t bytes = BytesRead(parsed.job.problem);
  if (__builtin_add_overflow(bytes, parsed.job.d_bytes, &bytes) ||
      __builtin_add_overflow(bytes, parsed.job.workspace_bytes, &bytes)) {
    return absl::ResourceExhaustedError("queue: the request needs more than 2^63 bytes");
  }
  absl::StatusOr<Admission::Ticket> ticket = admission_.Admit(bytes);
  const bool may_fit_later = bytes <= admission_.limits().max_bytes;
  if (absl::IsResourceExhausted(ticket.status()) && may_fit_later) {
    const int64_t backlog_ms = scheduler_.load(device).backlog_ns / 1'000'000;
    return WithRetryAfterMs(ticket.status(), std::clamp(backlog_ms, int64_t{1}, kMaxRetryAfterMs));
  }
  return ticket;
}

absl::StatusOr<JobId> ProductRunner::Start(const v1::MultiplyRequest& request, Arrival arrival,
                                           v1::MultiplyResponse& response,
                                           Admission::Ticket& ticket, Done done) {
  ASSIGN_OR_RETURN(ParsedRequest parsed, ParseMultiply(request, OperandBytes::kRequired));
  ASSIGN_OR_RETURN(const Placement placement, Place(parsed));
  Device& device = *placement.served->device;
  ASSIGN_OR_RETURN(ticket, Admit(parsed, device));

  Job& job = parsed.job;
  job.d = response.mutable_d()->mutable_data();
  InFlight in_flight = {.arrival = std::move(arrival),
                        .admitted_ns = clock_.NowNs(),
                        .problem = job.problem,
                        .kernel = job.kernel->name,
                        .device = device.info().name};
  Submission submission;
  submission.device = &device;
  submission.job = job;
  submission.bytes = BytesRead(job.problem) + job.d_bytes;
  submission.predicted_ns = placement.predicted_ns;
  submission.deadline_ns = in_flight.arrival.deadline_ns;
  submission.done = [this, &request, &response, in_flight = std::move(in_flight),
                     done = std::move(done)](JobResult result) mutable {
    const int64_t done_ns = clock_.NowNs();
    if (result.outcome.status.ok()) {
      response.set_request_id(request.request_id());
      FillMatrix(in_flight.problem, *response.mutable_d());
      response.set_kernel(std::string(in_flight.kernel));
      response.set_device(std::string(in_flight.device));
      response.set_operations(Operations(in_flight.problem));
      response.set_bytes_read(BytesRead(in_flight.problem));
      response.set_bytes_written(BytesWritten(in_flight.problem));
      FillTiming(result, in_flight, done_ns, clock_.NowNs(), *response.mutable_timing());
    }
    LogRequest(request.request_id(), in_flight, result, clock_.NowNs());
    std::move(done)(std::move(result.outcome.status));
  };
  return scheduler_.Submit(std::move(submission));
}

}  // namespace gemmd
