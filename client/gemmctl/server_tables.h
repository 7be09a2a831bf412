// SPDX-License-Identifier: Apache-2.0
//
// What the server says about itself, for people.
#pragma once

#include <string>

#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/registry.pb.h"

namespace gemmd {

// The device, the kernels that can run the product with their predicted times, and why the rest
// cannot.
std::string ExplanationTable(const v1::MultiplyRequest& request,
                             const v1::ExplainResponse& explanation);

std::string DeviceTable(const v1::ListDevicesResponse& devices);
std::string ServerInfoText(const v1::GetServerInfoResponse& info);

}  // namespace gemmd
