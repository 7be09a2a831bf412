// SPDX-License-Identifier: Apache-2.0
//
// The service gemmd.v1.Tensors over gRPC's callback API. Messages come and go as bytes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/metrics/handler_times.h"
#include "server/scheduling/product_runner.h"
#include "server/store/tensor_store.h"
#include "server/system/clock.h"
#include "server/wire/gate.h"
#include "server/wire/send_watch.h"

namespace gemmd {

// Borrows everything.
std::unique_ptr<grpc::Service> MakeTensorService(TensorStore& store, const ProductRunner& runner,
                                                 const Gate& gate, SendWatch& watch,
                                                 HandlerTimes& times, const Clock& clock);

}  // namespace gemmd
