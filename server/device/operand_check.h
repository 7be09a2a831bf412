// SPDX-License-Identifier: Apache-2.0
//
// What only the bytes of a job's operands show. It takes as long as they are large, so the device's
// own thread looks, and not the thread of gRPC that took the request.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/abort.h"
#include "server/device/device.h"

namespace gemmd {

// Errors: InvalidArgument where a sparse A is not in the portable 2:4 form: "a.data: row 3, group
// 17: got indices 2, 2, want increasing".
// Once the flag is set, the rest is not looked at.
absl::Status CheckOperands(const Problem& problem, const std::byte* a, AbortFlag abort);

// The same for a job. An A in pieces is put together for it; one in a block was looked at when it
// came there.
// Errors: ResourceExhausted besides; Cancelled where it was aborted while A was put together.
absl::Status CheckOperands(const Job& job, AbortFlag abort);

}  // namespace gemmd
