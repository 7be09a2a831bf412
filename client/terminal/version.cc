// SPDX-License-Identifier: Apache-2.0
//
// The only file of the client that a new commit compiles anew.
#include "client/terminal/version.h"

namespace gemmd {

std::string ToolVersion() { return GEMMD_VERSION; }

std::string ToolVersionText(std::string_view tool) {
  return std::string(tool) + " " + GEMMD_VERSION + "\ncommit " + GEMMD_COMMIT + "\ngRPC " +
         GEMMD_GRPC_VERSION + "\nprotobuf " + GEMMD_PROTOBUF_VERSION;
}

}  // namespace gemmd
