// SPDX-License-Identifier: Apache-2.0
#include "client/status_conversion.h"

#include <optional>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gemmd/client.h"

namespace gemmd {
namespace {

constexpr char kPushbackTrailer[] = "grpc-retry-pushback-ms";
constexpr char kPushbackPayload[] = "gemmd/retry-pushback-ms";

absl::StatusCode ToAbslCode(int code) {
  const bool is_known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return is_known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

// What gRPC itself says of these tells neither what happened nor what to do.
std::string TextOf(const grpc::Status& status) {
  const std::string& text = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
      (text.empty() || text == "Method not found!")) {
    return "the server does not know this call: it is no gemmd, or one of another version";
  }
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
      absl::StrContains(text, "message larger than max")) {
    return absl::StrCat(
        text,
        ": put large operands on the server first and keep large results there, for which there "
        "is no such limit, or raise it (max_message_bytes, and --max-message-bytes of gemmd)");
  }
  return text;
}

}  // namespace

absl::Status ToAbslStatus(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return absl::OkStatus();
  absl::Status converted(ToAbslCode(status.error_code()), TextOf(status));
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find(kPushbackTrailer);
  if (pushback != trailers.end()) {
    converted.SetPayload(kPushbackPayload, absl::Cord(absl::string_view(pushback->second.data(),
                                                                        pushback->second.size())));
  }
  return converted;
}

absl::Status ToAbslStatus(const v1::Error& error) {
  return {ToAbslCode(error.code()), error.message()};
}

std::optional<absl::Duration> RetryPushback(const absl::Status& status) {
  const auto payload = status.GetPayload(kPushbackPayload);
  int64_t milliseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &milliseconds) ||
      milliseconds < 0) {
    return std::nullopt;
  }
  return absl::Milliseconds(milliseconds);
}

}  // namespace gemmd
