// SPDX-License-Identifier: Apache-2.0
//
// One call of the Registry: bytes come in, bytes go out. gRPC's typed methods would read a request
// of any length before the service sees it, and write every answer anew.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/wire/unread_answers.h"

namespace gemmd {

// What a Registry's request has at most: its longest text is a product without operands.
inline constexpr size_t kMaxRegistryRequestBytes = size_t{1} << 20;

// An answer, and how many of its bytes nobody else keeps.
struct RegistryAnswer {
  grpc::ByteBuffer bytes;
  int64_t own_bytes = 0;
};

// Errors: ResourceExhausted, as gRPC has it, for too many bytes; InvalidArgument for bytes that are
// no such message, or have more unknown fields than Incoming allows.
absl::Status ReadRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message& request);

// The answer that a message is.
RegistryAnswer AnswerOf(const google::protobuf::MessageLite& message);

// Answers a call with what `answer` gives; the reactor owns itself.
grpc::ServerUnaryReactor* AnswerRegistryCall(
    grpc::CallbackServerContext& context, UnreadAnswers& unread,
    absl::FunctionRef<absl::StatusOr<RegistryAnswer>()> answer, grpc::ByteBuffer& response);

}  // namespace gemmd
