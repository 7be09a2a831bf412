// SPDX-License-Identifier: Apache-2.0
//
// The service that tells whether the server serves. gRPC's own one copies questions of any length,
// and keeps that of a Watch for as long as it lasts.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/metrics/handler_times.h"
#include "server/system/clock.h"
#include "server/wire/health.h"
#include "server/wire/send_watch.h"

namespace gemmd {

// Borrows what it is given.
std::unique_ptr<grpc::Service> MakeHealthService(Health& health, SendWatch& watch,
                                                 HandlerTimes& times, const Clock& clock);

}  // namespace gemmd
