// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gemmd {

std::string ToolVersion();  // "0.2.0", as GetServerInfoResponse.version says it.

// What --version of a tool prints, without the last end of line: version, commit, and the versions
// of gRPC and protobuf that it is built with.
std::string ToolVersionText(std::string_view tool);

}  // namespace gemmd
