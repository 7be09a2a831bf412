// SPDX-License-Identifier: Apache-2.0
//
// The daemon as its own client.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace gemmd {

// Makes a connection, whose other end `take` gives to the server as it gives it those of peers, and
// asks it for the devices. An answer shows that gRPC's threads take connections and calls, and that
// nobody holds the locks of scheduling, admission, statistics and devices for good.
//
// Errors: ResourceExhausted where no file descriptor is left, or where the server refuses for the
// load, which is an answer too; DeadlineExceeded where there is no answer in time; otherwise what
// the server answered.
absl::Status CallSelf(const std::function<void(int descriptor)>& take, absl::Duration timeout);

// Whether it is such a call: it has a mark that nobody outside the process knows.
bool IsOwnCall(const grpc::ServerContextBase& context);

}  // namespace gemmd
