// SPDX-License-Identifier: Apache-2.0
//
// Deadlines of gRPC's, for server and client, that no jump of the wall clock moves. gRPC compares a
// deadline of that clock with its own reading of it, and absl::Now() follows a jump up to two
// seconds late: made of both, a deadline would be off by as much as the clock jumped.
#pragma once

#include <grpc/support/time.h>

#include "absl/time/time.h"

namespace gemmd {

// So long from now, on the steady clock; within a year.
gpr_timespec DeadlineAfter(absl::Duration timeout);

}  // namespace gemmd
