// SPDX-License-Identifier: Apache-2.0
//
// A unary call for one product, in the messages of either protocol.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/metrics/handler_times.h"
#include "server/scheduling/product_runner.h"
#include "server/wire/grpc_status.h"
#include "server/wire/product_exchange.h"
#include "server/wire/send_watch.h"
#include "server/wire/wire_bytes.h"

namespace gemmd {

// Owns itself until OnDone, which gRPC calls after Finish and after any OnCancel.
template <typename Exchange>
class UnaryProduct final : public grpc::ServerUnaryReactor {
 public:
  using Begin = absl::FunctionRef<absl::StatusOr<JobId>(Exchange& exchange, Arrival arrival,
                                                        ProductExchange::Answer answer)>;

  template <typename... Arguments>
  UnaryProduct(const HandlerTiming& timing, ProductRunner& runner, SendWatch& watch,
               grpc::CallbackServerContext& context, WireBytes& response, Arguments&&... arguments)
      : timing_(timing),
        runner_(runner),
        context_(context),
        response_(response),
        exchange_(std::forward<Arguments>(arguments)...),
        sending_(watch, context) {}

  // `begin` starts the exchange; where the call may not be made it is refused instead.
  void Start(absl::StatusOr<Arrival> arrival, Begin begin) {
    std::optional<TraceSpan> span = StartSpan(context_);
    if (!arrival.ok()) return Finish(ToGrpcStatus(arrival.status()));
    arrival->span = std::move(span);
    absl::StatusOr<JobId> id = begin(exchange_, *std::move(arrival),
                                     [this](const absl::Status& status) { Answer(status); });
    if (id.ok()) {
      job_id_ = *id;
    } else {
      Answer(id.status());
    }
  }

  // Called only after Start has returned, because gRPC does not know the reactor before.
  void OnCancel() override {
    const HandlerTimer timer = timing_.Begin();
    runner_.Cancel(job_id_);
  }
  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    delete this;
  }

 private:
  void Answer(const absl::Status& status) {
    TellRetryAfter(status, context_);
    if (status.ok()) {
      exchange_.LeaveQueue();
      sending_.Begin(exchange_.answer_bytes());
      grpc::ByteBuffer answer = exchange_.TakeUnaryAnswer();
      response_.buffer.Swap(&answer);  // To assign it would copy the list of its slices.
    }
    Finish(ToGrpcStatus(status));
  }

  const HandlerTiming timing_;
  ProductRunner& runner_;
  grpc::CallbackServerContext& context_;
  WireBytes& response_;
  Exchange exchange_;
  SendWatch::Call sending_;
  JobId job_id_ = 0;  // No job has the id 0.
};

}  // namespace gemmd
