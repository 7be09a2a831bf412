// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/product.h"

namespace gemmd {

std::string_view NameOf(Stage stage) {
  switch (stage) {
    case Stage::kReceive: return "receive";
    case Stage::kQueue: return "queue";
    case Stage::kCopyIn: return "copy_in";
    case Stage::kCompute: return "compute";
    case Stage::kCopyOut: return "copy_out";
    case Stage::kSendPrepare: return "send_prepare";
  }
  return "";
}

FlowId Arrival::flow() const {
  return {.caller = caller != nullptr ? caller->name : HostOf(peer), .connection = connection};
}

}  // namespace gemmd
