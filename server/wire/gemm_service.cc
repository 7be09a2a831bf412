// SPDX-License-Identifier: Apache-2.0
#include "server/wire/gemm_service.h"

#include <optional>
#include <string>
#include <utility>

#include "server/wire/grpc_status.h"
#include "server/wire/multiply_stream.h"
#include "server/wire/product_exchange.h"

namespace gemmd {
namespace {

// The numbers of the methods in the order of the service's declaration.
constexpr int kMultiply = 0;
constexpr int kMultiplyStream = 1;

// One unary call. Owns itself until OnDone, which gRPC calls after Finish and after any OnCancel.
class MultiplyReactor final : public grpc::ServerUnaryReactor {
 public:
  MultiplyReactor(ProductRunner& runner, ReceiveQuota& quota, SendWatch& watch,
                  grpc::CallbackServerContext& context, WireBytes& response)
      : runner_(runner),
        quota_(quota),
        context_(context),
        response_(response),
        sending_(watch, context) {}

  void Start(grpc::ByteBuffer& request, Arrival arrival) {
    absl::StatusOr<JobId> id =
        exchange_.Start(runner_, quota_, Incoming(request), std::move(arrival),
                        [this](const absl::Status& status) { Answer(status); });
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
    if (status.ok()) {
      exchange_.LeaveQueue();
      sending_.Begin(exchange_.answer_bytes());
      response_.buffer = exchange_.TakeUnaryAnswer();
    }
    Finish(ToGrpcStatus(status));
  }

  ProductRunner& runner_;
  ReceiveQuota& quota_;
  grpc::CallbackServerContext& context_;
  WireBytes& response_;
  ProductExchange exchange_;
  SendWatch::Call sending_;
  JobId job_id_ = 0;  // No job has the id 0.
};

}  // namespace

GemmService::GemmService(ProductRunner& runner, const Gate& gate, ReceiveQuota& quota,
                         SendWatch& watch, HandlerTimes& times, const Clock& clock)
    : runner_(runner), gate_(gate), quota_(quota), watch_(watch), times_(times), clock_(clock) {
  MarkMethodRawCallback(kMultiply, new grpc::internal::CallbackUnaryHandler<WireBytes, WireBytes>(
                                       [this](grpc::CallbackServerContext* context,
                                              const WireBytes* request, WireBytes* response) {
                                         return StartMultiply(*context, *request, *response);
                                       }));
  MarkMethodRawCallback(
      kMultiplyStream,
      new grpc::internal::CallbackBidiHandler<WireBytes, WireBytes>(
          [this](grpc::CallbackServerContext* context) { return StartStream(*context); }));
}

grpc::ServerUnaryReactor* GemmService::StartMultiply(grpc::CallbackServerContext& context,
                                                     const WireBytes& request,
                                                     WireBytes& response) {
  // gRPC calls this as soon as the last byte is there.
  const int64_t arrived_ns = clock_.NowNs();
  const HandlerTimer timer(times_, clock_, Handler::kMultiply, arrived_ns);
  absl::StatusOr<Arrival> arrival = ArrivalOf(context, arrived_ns, gate_, clock_);
  auto* reactor = new MultiplyReactor(runner_, quota_, watch_, context, response);
  std::optional<TraceSpan> span = StartSpan(context);
  if (!arrival.ok()) {
    reactor->Finish(ToGrpcStatus(arrival.status()));
    return reactor;
  }
  arrival->span = std::move(span);
  reactor->Start(request.buffer, *std::move(arrival));
  return reactor;
}

grpc::ServerBidiReactor<WireBytes, WireBytes>* GemmService::StartStream(
    grpc::CallbackServerContext& context) {
  return StartMultiplyStream(runner_, gate_, quota_, watch_, times_, context, clock_);
}

}  // namespace gemmd
