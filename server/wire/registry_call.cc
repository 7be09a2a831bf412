// SPDX-License-Identifier: Apache-2.0
#include "server/wire/registry_call.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/or_no_memory.h"
#include "kernels/status_macros.h"
#include "server/wire/grpc_status.h"

namespace gemmd {
namespace {

constexpr std::string_view kNoMemory = "message: no memory for the answer, try again later";

void FreeText(void* text) { delete static_cast<std::string*>(text); }

// Keeps the room of its answer until gRPC has let go of it.
class Reactor final : public grpc::ServerUnaryReactor {
 public:
  Reactor(const HandlerTiming& timing, SendWatch& watch, grpc::CallbackServerContext& context)
      : timing_(timing), sending_(watch, context) {}

  absl::Status Take(UnreadAnswers& unread, absl::StatusOr<RegistryAnswer> answer,
                    grpc::ByteBuffer& response) {
    RETURN_IF_ERROR(answer.status());
    ASSIGN_OR_RETURN(room_, unread.Hold(answer->own_bytes));
    response.Swap(&answer->bytes);
    sending_.Begin(static_cast<int64_t>(response.Length()));
    return absl::OkStatus();
  }
  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    delete this;
  }

 private:
  const HandlerTiming timing_;
  SendWatch::Call sending_;
  UnreadAnswers::Room room_;
};

}  // namespace

RegistryAnswer AnswerOf(const google::protobuf::MessageLite& message) {
  auto text = std::make_unique<std::string>(message.SerializeAsString());
  const size_t size = text->size();
  // A short one is sooner copied. gRPC ends the process where it has no memory for a copy.
  if (size <= UnreadAnswers::kUncountedBytes) {
    const grpc::Slice copy(*text);
    return {grpc::ByteBuffer(&copy, 1), static_cast<int64_t>(size)};
  }
  char* const data = text->data();
  const grpc::Slice borrowed(data, size, FreeText, text.release());
  return {grpc::ByteBuffer(&borrowed, 1), static_cast<int64_t>(size)};
}

grpc::ServerUnaryReactor* AnswerRegistryCall(
    const HandlerTiming& timing, grpc::CallbackServerContext& context, UnreadAnswers& unread,
    SendWatch& watch, absl::FunctionRef<absl::StatusOr<RegistryAnswer>()> answer,
    grpc::ByteBuffer& response) {
  auto* const reactor = new Reactor(timing, watch, context);
  const absl::Status status = reactor->Take(unread, OrNoMemory(kNoMemory, answer), response);
  TellRetryAfter(status, context);
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace gemmd
