// SPDX-License-Identifier: Apache-2.0
//
// One Gemm.MultiplyStream call: many products on one stream, answered as they finish.
#pragma once

#include "gemmd/v1/gemm.grpc.pb.h"
#include "server/metrics/handler_times.h"
#include "server/scheduling/product_runner.h"
#include "server/system/clock.h"

namespace gemmd {

// Starts reading. The reactor owns itself until gRPC is done with it. Borrows everything, which
// outlives the call.
grpc::ServerBidiReactor<v1::MultiplyRequest, v1::MultiplyStreamResponse>* StartMultiplyStream(
    ProductRunner& runner, HandlerTimes& times, grpc::CallbackServerContext& context,
    const Clock& clock);

}  // namespace gemmd
