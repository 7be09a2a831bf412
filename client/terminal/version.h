// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gemmd {

std::string ToolVersion();  // "0.2.0", as GetServerInfoResponse.version says it.

// The output of a tool's --version, without the final line feed: version, commit, and the versions
// of gRPC and protobuf it was built with.
std::string ToolVersionText(std::string_view tool);

}  // namespace gemmd
