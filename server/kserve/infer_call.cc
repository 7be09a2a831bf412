// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/infer_call.h"

#include <optional>
#include <utility>

#include "server/wire/grpc_status.h"

namespace gemmd {
namespace {

// Owns itself until OnDone, which gRPC calls after Finish and after any OnCancel.
class InferReactor final : public grpc::ServerUnaryReactor {
 public:
  InferReactor(const InferSetting& setting, grpc::CallbackServerContext& context,
               WireBytes& response)
      : runner_(setting.runner),
        context_(context),
        response_(response),
        exchange_(setting),
        sending_(setting.watch, context) {}

  void Start(grpc::ByteBuffer& request, Arrival arrival) {
    absl::StatusOr<JobId> id = exchange_.Start(
        request, std::move(arrival), [this](const absl::Status& status) { Answer(status); });
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
      response_.buffer = exchange_.TakeAnswer();
    }
    Finish(ToGrpcStatus(status));
  }

  ProductRunner& runner_;
  grpc::CallbackServerContext& context_;
  WireBytes& response_;
  InferExchange exchange_;
  SendWatch::Call sending_;
  JobId job_id_ = 0;  // No job has the id 0.
};

}  // namespace

grpc::ServerUnaryReactor* StartInfer(const InferSetting& setting,
                                     grpc::CallbackServerContext& context, const WireBytes& request,
                                     WireBytes& response) {
  // gRPC calls this as soon as the last byte is there.
  const int64_t arrived_ns = setting.clock.NowNs();
  const HandlerTimer timer(setting.times, setting.clock, Handler::kModelInfer, arrived_ns);
  absl::StatusOr<Arrival> arrival = ArrivalOf(context, arrived_ns, setting.gate, setting.clock);
  auto* const reactor = new InferReactor(setting, context, response);
  std::optional<TraceSpan> span = StartSpan(context);
  if (!arrival.ok()) {
    reactor->Finish(ToGrpcStatus(arrival.status()));
    return reactor;
  }
  arrival->span = std::move(span);
  reactor->Start(request.buffer, *std::move(arrival));
  return reactor;
}

}  // namespace gemmd
