// SPDX-License-Identifier: Apache-2.0
//
// The service gemmd.v1.Gemm over gRPC's callback API: reactions parse, validate and enqueue;
// answers are made on the device's thread.
#pragma once

#include <optional>

#include "absl/functional/any_invocable.h"
#include "gemmd/v1/gemm.grpc.pb.h"
#include "server/metrics/handler_times.h"
#include "server/scheduling/product_runner.h"
#include "server/system/clock.h"

namespace gemmd {

// Unanswered requests on one stream before the server stops reading.
inline constexpr int kMaxStreamRequests = 64;

class GemmService final : public v1::Gemm::CallbackService {
 public:
  // Borrows everything.
  GemmService(ProductRunner& runner, HandlerTimes& times, const Clock& clock);

  grpc::ServerUnaryReactor* Multiply(grpc::CallbackServerContext* context,
                                     const v1::MultiplyRequest* request,
                                     v1::MultiplyResponse* response) override;

  grpc::ServerBidiReactor<v1::MultiplyRequest, v1::MultiplyStreamResponse>* MultiplyStream(
      grpc::CallbackServerContext* context) override;

 private:
  // Makes the messages of unary calls, and so knows when the bytes of a request have arrived.
  class Allocator final : public grpc::MessageAllocator<v1::MultiplyRequest, v1::MultiplyResponse> {
   public:
    explicit Allocator(const Clock& clock) : clock_(clock) {}
    grpc::MessageHolder<v1::MultiplyRequest, v1::MultiplyResponse>* AllocateMessages() override;

   private:
    const Clock& clock_;
  };

  ProductRunner& runner_;
  HandlerTimes& times_;
  const Clock& clock_;
  Allocator allocator_;
};

// The span of a call whose metadata have one valid `traceparent`. Adds the span to the trailing
// metadata of the answer: call it once, before anything can end the call.
std::optional<TraceSpan> StartSpan(grpc::CallbackServerContext& context);

// What a call's context says about its deadline and its peer.
Arrival ArrivalOf(const grpc::CallbackServerContext& context, int64_t arrived_ns,
                  const Clock& clock);

// The caller whose answer is `response`; both messages live until `answer` is called.
ProductCaller CallerOf(const v1::MultiplyRequest& request, v1::MultiplyResponse& response,
                       absl::AnyInvocable<void(const absl::Status&) &&> answer);

}  // namespace gemmd
