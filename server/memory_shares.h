// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/server.h"

namespace gemmd {

// The options with each limit of memory that was left to the server (0) as a share of what the
// process may have: three eighths, but at most 4 GiB, are admitted, a quarter is for the buffers of
// gRPC and an eighth for tensors. The last quarter is for the daemon itself and its threads.
ServerOptions WithMemoryShares(ServerOptions options);

}  // namespace gemmd
