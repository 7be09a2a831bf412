// SPDX-License-Identifier: Apache-2.0
//
// The only client file that is recompiled for each new commit.
#include "client/terminal/version.h"

namespace gemmd {

std::string ToolVersion() { return GEMMD_VERSION; }

std::string ToolVersionText(std::string_view tool) {
  return std::string(tool) + " " + GEMMD_VERSION + "\ncommit " + GEMMD_COMMIT + "\ngRPC " +
         GEMMD_GRPC_VERSION + "\nprotobuf " + GEMMD_PROTOBUF_VERSION;
}

}  // namespace gemmd
