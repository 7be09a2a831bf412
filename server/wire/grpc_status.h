// SPDX-License-Identifier: Apache-2.0
//
// The one place where absl::Status becomes grpc::Status.
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"

namespace gemmd {

// The codes have the same numbers in both.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Tells the client, beside a refusal that says so, after how many milliseconds to try again. Call
// it before the call is finished.
void TellRetryAfter(const absl::Status& status, grpc::CallbackServerContext& context);

}  // namespace gemmd
