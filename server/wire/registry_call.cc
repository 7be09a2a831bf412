// SPDX-License-Identifier: Apache-2.0
#include "server/wire/registry_call.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <string>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/grpc_status.h"
#include "server/wire/incoming.h"

namespace gemmd {
namespace {

// Keeps the room of its answer until gRPC has let go of it.
class Reactor final : public grpc::ServerUnaryReactor {
 public:
  Reactor(SendWatch& watch, grpc::CallbackServerContext& context) : sending_(watch, context) {}

  absl::Status Take(UnreadAnswers& unread, absl::StatusOr<RegistryAnswer> answer,
                    grpc::ByteBuffer& response) {
    RETURN_IF_ERROR(answer.status());
    ASSIGN_OR_RETURN(room_, unread.Hold(answer->own_bytes));
    response.Swap(&answer->bytes);
    WatchAnswer(response, sending_);
    return absl::OkStatus();
  }
  void OnDone() override { delete this; }

 private:
  SendWatch::Call sending_;
  UnreadAnswers::Room room_;
};

}  // namespace

absl::Status ReadRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message& request) {
  if (bytes.Length() > kMaxRegistryRequestBytes) {
    return absl::ResourceExhaustedError(GotWant("request", Concat(bytes.Length(), " bytes"),
                                                Concat("at most ", kMaxRegistryRequestBytes)));
  }
  grpc::ByteBuffer references(bytes);  // To the same memory: they are taken out of a buffer.
  Incoming incoming(references);
  RETURN_IF_ERROR(incoming.Examine(request).status());
  request.Clear();
  grpc::ByteBuffer parsed(bytes);
  grpc::ProtoBufferReader reader(&parsed);
  // Text that is no UTF-8 shows only now.
  if (!reader.status().ok() || !request.ParseFromZeroCopyStream(&reader)) {
    return absl::InvalidArgumentError("message: got bytes that are no message of this method");
  }
  request.DiscardUnknownFields();
  return absl::OkStatus();
}

RegistryAnswer AnswerOf(const google::protobuf::MessageLite& message) {
  const grpc::Slice bytes(message.SerializeAsString());
  return {grpc::ByteBuffer(&bytes, 1), static_cast<int64_t>(bytes.size())};
}

void WatchAnswer(const grpc::ByteBuffer& answer, SendWatch::Call& sending) {
  const auto bytes = static_cast<int64_t>(answer.Length());
  if (bytes > UnreadAnswers::kUncountedBytes) sending.Begin(bytes);
}

grpc::ServerUnaryReactor* AnswerRegistryCall(
    grpc::CallbackServerContext& context, UnreadAnswers& unread, SendWatch& watch,
    absl::FunctionRef<absl::StatusOr<RegistryAnswer>()> answer, grpc::ByteBuffer& response) {
  auto* const reactor = new Reactor(watch, context);
  const absl::Status status = reactor->Take(unread, answer(), response);
  TellRetryAfter(status, context);
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace gemmd
