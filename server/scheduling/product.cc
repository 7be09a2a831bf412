// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/product.h"

namespace gemmd {

FlowId Arrival::flow() const {
  return {.caller = caller != nullptr ? caller->name : HostOf(peer), .connection = connection};
}

}  // namespace gemmd
