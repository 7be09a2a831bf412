// SPDX-License-Identifier: Apache-2.0
//
// The service gemmd.v1.Gemm: unary calls and streams of products.
#pragma once

#include <grpcpp/grpcpp.h>

#include "gemmd/v1/gemm.grpc.pb.h"
#include "server/metrics/handler_times.h"
#include "server/product/product_runner.h"
#include "server/system/clock.h"
#include "server/wire/calls.h"
#include "server/wire/gate.h"
#include "server/wire/incoming.h"

namespace gemmd {

// One Gemm.MultiplyStream call: many products on one stream, answered as they finish.
//
// Starts reading. The reactor owns itself until gRPC is done with it. Borrows everything, which
// outlives the call.
grpc::ServerBidiReactor<WireBytes, WireBytes>* StartMultiplyStream(
    ProductRunner& runner, const Gate& gate, ReceiveQuota& quota, SendWatch& watch,
    HandlerTimes& times, grpc::CallbackServerContext& context, const Clock& clock);

// Unanswered products on one stream before the server stops reading.
inline constexpr int kMaxStreamRequests = 1024;

// The service gemmd.v1.Gemm over gRPC's callback API: reactions parse, validate and enqueue;
// answers are made on other threads. Messages come and go as bytes, so that the service knows
// what they take before they are parsed, and so that no matrix is copied into an answer.
class GemmService final : public v1::Gemm::Service {
 public:
  // Borrows everything.
  GemmService(ProductRunner& runner, const Gate& gate, ReceiveQuota& quota, SendWatch& watch,
              HandlerTimes& times, const Clock& clock);

 private:
  // By other names than the typed methods of the base, which are never called.
  grpc::ServerUnaryReactor* StartMultiply(grpc::CallbackServerContext& context,
                                          const WireBytes& request, WireBytes& response);
  grpc::ServerBidiReactor<WireBytes, WireBytes>* StartStream(grpc::CallbackServerContext& context);

  ProductRunner& runner_;
  const Gate& gate_;
  ReceiveQuota& quota_;
  SendWatch& watch_;
  HandlerTimes& times_;
  const Clock& clock_;
};

}  // namespace gemmd
