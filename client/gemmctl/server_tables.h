// SPDX-License-Identifier: Apache-2.0
//
// What the server says about itself, for people.
#pragma once

#include <string>

#include "gemmd/v1/registry.pb.h"

namespace gemmd {

std::string DeviceTable(const v1::ListDevicesResponse& devices);
std::string ServerInfoText(const v1::GetServerInfoResponse& info);

}  // namespace gemmd
