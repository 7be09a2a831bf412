// SPDX-License-Identifier: Apache-2.0
#include "server/wire/gemm_service.h"

#include <utility>

#include "server/wire/multiply_stream.h"
#include "server/wire/unary_product.h"

namespace gemmd {
namespace {

// The numbers of the methods in the order of the service's declaration.
constexpr int kMultiply = 0;
constexpr int kMultiplyStream = 1;

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
  auto* const call = new UnaryProduct<ProductExchange>({times_, clock_, Handler::kMultiply},
                                                       runner_, watch_, context, response);
  call->Start(ArrivalOf(context, "Multiply", arrived_ns, gate_, clock_),
              [&](ProductExchange& exchange, Arrival arrival, ProductExchange::Answer answer) {
                return exchange.Start(runner_, quota_, Incoming(request.buffer), std::move(arrival),
                                      std::move(answer));
              });
  return call;
}

grpc::ServerBidiReactor<WireBytes, WireBytes>* GemmService::StartStream(
    grpc::CallbackServerContext& context) {
  return StartMultiplyStream(runner_, gate_, quota_, watch_, times_, context, clock_);
}

}  // namespace gemmd
