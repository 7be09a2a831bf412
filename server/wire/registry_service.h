// SPDX-License-Identifier: Apache-2.0
//
// The service gemmd.v1.Registry: kernels, devices, the choice for a product, version and limits,
// counts, instructions.
#pragma once

#include <memory>
#include <vector>

#include "gemmd/v1/registry.grpc.pb.h"
#include "server/metrics/handler_times.h"
#include "server/metrics/observer.h"
#include "server/scheduling/product_runner.h"
#include "server/system/clock.h"
#include "server/wire/gate.h"
#include "server/wire/send_watch.h"

namespace gemmd {

// Borrows everything. `limits` is what GetServerInfo tells.
std::unique_ptr<grpc::Service> MakeRegistryService(const std::vector<ServedDevice>& devices,
                                                   const ProductRunner& runner, const Gate& gate,
                                                   const Observer& observer, SendWatch& watch,
                                                   HandlerTimes& times, const Clock& clock,
                                                   v1::Limits limits);

}  // namespace gemmd
