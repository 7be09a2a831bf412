// SPDX-License-Identifier: Apache-2.0
//
// The one place where absl::Status becomes grpc::Status.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace gemmd {

// The codes have the same numbers in both.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace gemmd
