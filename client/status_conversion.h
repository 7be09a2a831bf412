// SPDX-License-Identifier: Apache-2.0
//
// The client's one place where a status of gRPC or of the wire becomes an absl::Status.
#pragma once

#include "absl/status/status.h"
#include "gemmd/v1/gemm.pb.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace gemmd {

// The status of a call that has ended, with the pause that the server asked for (see RetryPushback)
// where there is one. Codes that Abseil does not know become Unknown.
absl::Status ToAbslStatus(const grpc::Status& status, const grpc::ClientContext& context);

// The failure of one request of a stream. Code 0, which the contract forbids, becomes Unknown.
absl::Status ToAbslStatus(const v1::Error& error);

}  // namespace gemmd
