// SPDX-License-Identifier: Apache-2.0
//
// One call of the Registry: bytes come in, bytes go out. gRPC's typed methods would read a request
// of any length before the service sees it, and write every answer anew.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/metrics/handler_times.h"
#include "server/wire/send_watch.h"
#include "server/wire/unread_answers.h"

namespace gemmd {

// An answer, and how many of its bytes nobody else keeps.
struct RegistryAnswer {
  grpc::ByteBuffer bytes;
  int64_t own_bytes = 0;
};

// The answer that a message is.
RegistryAnswer AnswerOf(const google::protobuf::MessageLite& message);

// Answers a call with what `answer` gives; the reactor owns itself. The watch ends the call where
// nobody reads the answer: a short one takes little, but its call takes more.
grpc::ServerUnaryReactor* AnswerRegistryCall(
    const HandlerTiming& timing, grpc::CallbackServerContext& context, UnreadAnswers& unread,
    SendWatch& watch, absl::FunctionRef<absl::StatusOr<RegistryAnswer>()> answer,
    grpc::ByteBuffer& response);

}  // namespace gemmd
