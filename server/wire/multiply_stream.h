// SPDX-License-Identifier: Apache-2.0
//
// One Gemm.MultiplyStream call: many products on one stream, answered as they finish.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/metrics/handler_times.h"
#include "server/scheduling/product_runner.h"
#include "server/system/clock.h"
#include "server/wire/gate.h"
#include "server/wire/receive_quota.h"
#include "server/wire/send_watch.h"
#include "server/wire/wire_bytes.h"

namespace gemmd {

// Starts reading. The reactor owns itself until gRPC is done with it. Borrows everything, which
// outlives the call.
grpc::ServerBidiReactor<WireBytes, WireBytes>* StartMultiplyStream(
    ProductRunner& runner, const Gate& gate, ReceiveQuota& quota, SendWatch& watch,
    HandlerTimes& times, grpc::CallbackServerContext& context, const Clock& clock);

}  // namespace gemmd
