// SPDX-License-Identifier: Apache-2.0
#include "server/wire/gemm_service.h"

#include <grpc/support/time.h>

#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "server/system/log.h"
#include "server/wire/convert.h"
#include "server/wire/grpc_status.h"
#include "server/wire/multiply_stream.h"

namespace gemmd {
namespace {

// The messages of one unary call, freed with the call.
class CallMessages final : public grpc::MessageHolder<v1::MultiplyRequest, v1::MultiplyResponse> {
 public:
  explicit CallMessages(int64_t arrived_ns) : arrived_ns_(arrived_ns) {
    set_request(&request_);
    set_response(&response_);
  }
  void Release() override { delete this; }
  int64_t arrived_ns() const { return arrived_ns_; }

 private:
  const int64_t arrived_ns_;
  v1::MultiplyRequest request_;
  v1::MultiplyResponse response_;
};

// One unary call. Owns itself until OnDone, which gRPC calls after Finish and after any OnCancel.
class MultiplyReactor final : public grpc::ServerUnaryReactor {
 public:
  MultiplyReactor(ProductRunner& runner, grpc::CallbackServerContext& context)
      : runner_(runner), context_(context) {}

  void Start(const v1::MultiplyRequest& request, Arrival arrival, v1::MultiplyResponse& response) {
    arrival.request_id = request.request_id();
    absl::StatusOr<JobId> id = runner_.Start(
        ParseMultiply(request, OperandBytes::kRequired), std::move(arrival), ticket_,
        CallerOf(request, response, [this](const absl::Status& status) { Answer(status); }));
    if (id.ok()) {
      job_id_ = *id;
    } else {
      Answer(id.status());
    }
  }

  // Called only after Start has returned, because gRPC does not know the reactor before.
  void OnCancel() override { runner_.Cancel(job_id_); }
  void OnDone() override { delete this; }

 private:
  void Answer(const absl::Status& status) {
    TellRetryAfter(status, context_);
    ticket_.MarkAnswered();
    Finish(ToGrpcStatus(status));
  }

  ProductRunner& runner_;
  grpc::CallbackServerContext& context_;
  Admission::Ticket ticket_;
  JobId job_id_ = 0;  // No job has the id 0.
};

// The deadline on the clock of `now_ns`. std::chrono's nanoseconds since 1970 overflow in the year
// 2262, and a client may ask for a later deadline, so they are not used.
int64_t DeadlineNs(gpr_timespec deadline, int64_t now_ns) {
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  const int64_t left_ns =
      absl::ToInt64Nanoseconds(absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec));
  return left_ns < kNoDeadlineNs - now_ns ? now_ns + left_ns : kNoDeadlineNs;
}

}  // namespace

std::optional<TraceSpan> StartSpan(grpc::CallbackServerContext& context) {
  const auto [first, last] = context.client_metadata().equal_range(kTraceparentKey);
  // Two values cannot both be the parent.
  if (first == last || std::next(first) != last) return std::nullopt;
  std::optional<TraceSpan> span = ContinueTrace({first->second.data(), first->second.size()});
  if (span) context.AddTrailingMetadata(kTraceparentKey, span->traceparent());
  return span;
}

Arrival ArrivalOf(const grpc::CallbackServerContext& context, int64_t arrived_ns,
                  const Clock& clock) {
  Arrival arrival;
  arrival.arrived_ns = arrived_ns;
  arrival.deadline_ns = DeadlineNs(context.raw_deadline(), clock.NowNs());
  arrival.peer = context.peer();
  return arrival;
}

ProductCaller CallerOf(const v1::MultiplyRequest& request, v1::MultiplyResponse& response,
                       absl::AnyInvocable<void(const absl::Status&) &&> answer) {
  return {.d = response.mutable_d()->mutable_data(),
          .prepare =
              [&request, &response](const ProductOutcome& outcome) {
                FillResponse(outcome, request.request_id(), response);
              },
          .done =
              [&response, answer = std::move(answer)](const ProductOutcome& outcome) mutable {
                if (outcome.status.ok()) *response.mutable_timing() = ToWire(outcome.timing);
                std::move(answer)(outcome.status);
              }};
}

GemmService::GemmService(ProductRunner& runner, HandlerTimes& times, const Clock& clock)
    : runner_(runner), times_(times), clock_(clock), allocator_(clock) {
  SetMessageAllocatorFor_Multiply(&allocator_);
}

grpc::MessageHolder<v1::MultiplyRequest, v1::MultiplyResponse>*
GemmService::Allocator::AllocateMessages() {
  return new CallMessages(clock_.NowNs());
}

grpc::ServerUnaryReactor* GemmService::Multiply(grpc::CallbackServerContext* context,
                                                const v1::MultiplyRequest* request,
                                                v1::MultiplyResponse* response) {
  const auto* messages = static_cast<const CallMessages*>(context->GetRpcAllocatorState());
  // Since the bytes have arrived: they are parsed on this thread too.
  const HandlerTimer timer(times_, clock_, Handler::kMultiply, messages->arrived_ns());
  auto* reactor = new MultiplyReactor(runner_, *context);
  Arrival arrival = ArrivalOf(*context, messages->arrived_ns(), clock_);
  arrival.span = StartSpan(*context);
  reactor->Start(*request, std::move(arrival), *response);
  return reactor;
}

grpc::ServerBidiReactor<v1::MultiplyRequest, v1::MultiplyStreamResponse>*
GemmService::MultiplyStream(grpc::CallbackServerContext* context) {
  return StartMultiplyStream(runner_, times_, *context, clock_);
}

}  // namespace gemmd
