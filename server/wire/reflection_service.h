// SPDX-License-Identifier: Apache-2.0
//
// The service that tells what there is to call. gRPC's own one blocks a thread for each stream that
// is open, and makes messages of whatever is sent to it.
#pragma once

#include <grpcpp/impl/server_builder_option.h>

#include <memory>

#include "server/metrics/handler_times.h"
#include "server/scheduling/product_runner.h"
#include "server/system/clock.h"
#include "server/wire/gate.h"
#include "server/wire/send_watch.h"

namespace gemmd {

// Adds the service to a server. It lists all services of that, itself included, and describes what
// this program has descriptors of. Borrows what it is given.
std::unique_ptr<grpc::ServerBuilderOption> Reflection(const ProductRunner& runner, const Gate& gate,
                                                      SendWatch& watch, HandlerTimes& times,
                                                      const Clock& clock);

}  // namespace gemmd
