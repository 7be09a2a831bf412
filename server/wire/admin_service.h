// SPDX-License-Identifier: Apache-2.0
//
// What an operator does to a running server: over a local socket only, or in the role that rules
// have for it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <vector>

#include "server/device/device.h"
#include "server/metrics/handler_times.h"
#include "server/scheduling/incidents.h"
#include "server/scheduling/product_runner.h"
#include "server/system/clock.h"
#include "server/wire/gate.h"
#include "server/wire/send_watch.h"

namespace gemmd {

// Borrows all of them. A message holds at most so many bytes.
std::unique_ptr<grpc::Service> MakeAdminService(const std::vector<ServedDevice>& devices,
                                                const ProductRunner& runner, const Gate& gate,
                                                const IncidentLog& incidents, HandlerTimes& times,
                                                const Clock& clock, SendWatch& watch,
                                                int64_t max_message_bytes);

}  // namespace gemmd
