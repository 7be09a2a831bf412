// SPDX-License-Identifier: Apache-2.0
//
// One call of the Registry: bytes come in, bytes go out. gRPC's typed methods would read a request
// of any length before the service sees it, and write every answer anew.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/wire/send_watch.h"
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

// Watches a call from now on that sends so long an answer that it is counted.
void WatchAnswer(const grpc::ByteBuffer& answer, SendWatch::Call& sending);

// Answers a call with what `answer` gives; the reactor owns itself. The watch ends the call where
// nobody reads a long answer.
grpc::ServerUnaryReactor* AnswerRegistryCall(
    grpc::CallbackServerContext& context, UnreadAnswers& unread, SendWatch& watch,
    absl::FunctionRef<absl::StatusOr<RegistryAnswer>()> answer, grpc::ByteBuffer& response);

}  // namespace gemmd
