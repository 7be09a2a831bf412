// SPDX-License-Identifier: Apache-2.0
//
// The service inference.GRPCInferenceService: KServe's v2 protocol, for clients that were written
// for other servers. Its products go the way of all others.
#pragma once

#include <functional>
#include <memory>

#include "kserve/v2/inference.grpc.pb.h"
#include "server/metrics/handler_times.h"
#include "server/product/product_runner.h"
#include "server/system/clock.h"
#include "server/wire/calls.h"
#include "server/wire/gate.h"
#include "server/wire/incoming.h"

namespace gemmd {

// Borrows everything. `is_ready` tells whether the server takes products; threads: any.
std::unique_ptr<grpc::Service> MakeKserveService(ProductRunner& runner, const Gate& gate,
                                                 ReceiveQuota& quota, SendWatch& watch,
                                                 HandlerTimes& times, const Clock& clock,
                                                 std::function<bool()> is_ready);

}  // namespace gemmd
