// SPDX-License-Identifier: Apache-2.0
#include "server/wire/registry_call.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <string>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/grpc_status.h"

namespace gemmd {
namespace {

// Keeps the room of its answer until gRPC has let go of it.
class Reactor final : public grpc::ServerUnaryReactor {
 public:
  absl::Status Take(UnreadAnswers& unread, absl::StatusOr<RegistryAnswer> answer,
                    grpc::ByteBuffer& response) {
    RETURN_IF_ERROR(answer.status());
    ASSIGN_OR_RETURN(room_, unread.Hold(answer->own_bytes));
    response.Swap(&answer->bytes);
    return absl::OkStatus();
  }
  void OnDone() override { delete this; }

 private:
  UnreadAnswers::Room room_;
};

}  // namespace

absl::Status ReadRequest(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite& request) {
  if (bytes.Length() > kMaxRegistryRequestBytes) {
    return absl::ResourceExhaustedError(GotWant("request", Concat(bytes.Length(), " bytes"),
                                                Concat("at most ", kMaxRegistryRequestBytes)));
  }
  grpc::ByteBuffer copy(bytes);  // References only: the reader takes a buffer that it may change.
  grpc::ProtoBufferReader reader(&copy);
  if (reader.status().ok() && request.ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      GotWant("request", "bytes that are no message", request.GetTypeName()));
}

RegistryAnswer AnswerOf(const google::protobuf::MessageLite& message) {
  const grpc::Slice bytes(message.SerializeAsString());
  return {grpc::ByteBuffer(&bytes, 1), static_cast<int64_t>(bytes.size())};
}

grpc::ServerUnaryReactor* AnswerRegistryCall(
    grpc::CallbackServerContext& context, UnreadAnswers& unread,
    absl::FunctionRef<absl::StatusOr<RegistryAnswer>()> answer, grpc::ByteBuffer& response) {
  auto* const reactor = new Reactor;
  const absl::Status status = reactor->Take(unread, answer(), response);
  TellRetryAfter(status, context);
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace gemmd
