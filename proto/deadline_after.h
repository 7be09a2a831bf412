// SPDX-License-Identifier: Apache-2.0
//
// gRPC deadlines, for server and client, that jumps of the wall clock do not move. gRPC compares a
// deadline on that clock with its own reading of it, but absl::Now() follows a jump up to two
// seconds late: a deadline from absl::Now() would be off by the jump.
#pragma once

#include <grpc/support/time.h>

#include "absl/time/time.h"

namespace gemmd {

// `timeout` from now, on the steady clock; at most a year.
gpr_timespec DeadlineAfter(absl::Duration timeout);

}  // namespace gemmd
