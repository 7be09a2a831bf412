// SPDX-License-Identifier: Apache-2.0
//
// The only file of the daemon that is recompiled for a new commit.
#include "server/system/version.h"

namespace gemmd {

const char kCommit[] = GEMMD_COMMIT;
const char kGrpcVersion[] = GEMMD_GRPC_VERSION;
const char kProtobufVersion[] = GEMMD_PROTOBUF_VERSION;

std::string VersionText(std::string_view program) {
  return std::string(program) + " " + kVersion + "\ncommit " + kCommit + "\ngRPC " + kGrpcVersion +
         "\nprotobuf " + kProtobufVersion;
}

}  // namespace gemmd
