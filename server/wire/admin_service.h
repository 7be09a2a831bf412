// SPDX-License-Identifier: Apache-2.0
//
// What an operator does to a running server, over a local socket only.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <vector>

#include "server/device/served_device.h"
#include "server/scheduling/incidents.h"

namespace gemmd {

// Borrows the devices and the log. A message holds at most so many bytes.
std::unique_ptr<grpc::Service> MakeAdminService(const std::vector<ServedDevice>& devices,
                                                const IncidentLog& incidents,
                                                int64_t max_message_bytes);

}  // namespace gemmd
