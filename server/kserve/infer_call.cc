// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/infer_call.h"

#include <utility>

#include "server/wire/unary_product.h"

namespace gemmd {
grpc::ServerUnaryReactor* StartInfer(const InferSetting& setting,
                                     grpc::CallbackServerContext& context, const WireBytes& request,
                                     WireBytes& response) {
  // gRPC calls this as soon as the last byte is there.
  const int64_t arrived_ns = setting.clock.NowNs();
  const HandlerTimer timer(setting.times, setting.clock, Handler::kModelInfer, arrived_ns);
  auto* const call =
      new UnaryProduct<InferExchange>({setting.times, setting.clock, Handler::kModelInfer},
                                      setting.runner, setting.watch, context, response, setting);
  call->Start(ArrivalOf(context, "ModelInfer", arrived_ns, setting.gate, setting.clock),
              [&](InferExchange& exchange, Arrival arrival, ProductExchange::Answer answer) {
                return exchange.Start(request.buffer, std::move(arrival), std::move(answer));
              });
  return call;
}

}  // namespace gemmd
