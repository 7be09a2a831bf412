// SPDX-License-Identifier: Apache-2.0
#include "server/wire/grpc_status.h"

#include <optional>
#include <string>

#include "server/scheduling/admission.h"

namespace gemmd {
namespace {

// The trailer by which gRPC's clients learn after how many milliseconds to try again.
constexpr char kPushbackKey[] = "grpc-retry-pushback-ms";

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message()));
}

void TellRetryAfter(const absl::Status& status, grpc::CallbackServerContext& context) {
  const std::optional<int64_t> retry_after_ms = RetryAfterMs(status);
  if (retry_after_ms) {
    context.AddTrailingMetadata(kPushbackKey, std::to_string(*retry_after_ms));
  }
}

}  // namespace gemmd
