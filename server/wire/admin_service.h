// SPDX-License-Identifier: Apache-2.0
//
// What an operator does to a running server, over a local socket only.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <vector>

#include "server/device/served_device.h"

namespace gemmd {

// Borrows the devices.
std::unique_ptr<grpc::Service> MakeAdminService(const std::vector<ServedDevice>& devices);

}  // namespace gemmd
