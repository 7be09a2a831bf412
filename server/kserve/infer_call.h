// SPDX-License-Identifier: Apache-2.0
//
// The calls of KServe's protocol that compute: one product, or a stream of them.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/kserve/models.h"
#include "server/metrics/handler_times.h"
#include "server/product/product_runner.h"
#include "server/system/clock.h"
#include "server/wire/calls.h"
#include "server/wire/gate.h"
#include "server/wire/incoming.h"

namespace gemmd {

// What all calls share. Borrowed.
struct InferSetting {
  ProductRunner& runner;
  const Gate& gate;
  ReceiveQuota& quota;
  const Models& models;
  ModelCounts& counts;
  SendWatch& watch;
  HandlerTimes& times;
  const Clock& clock;
};

// The reactors own themselves. Borrow the setting.
grpc::ServerUnaryReactor* StartInfer(const InferSetting& setting,
                                     grpc::CallbackServerContext& context, const WireBytes& request,
                                     WireBytes& response);
grpc::ServerBidiReactor<WireBytes, WireBytes>* StartInferStream(
    const InferSetting& setting, grpc::CallbackServerContext& context);

}  // namespace gemmd
