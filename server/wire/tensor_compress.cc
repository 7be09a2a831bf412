// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_compress.h"

#include <memory>
#include <utility>

#include "gemmd/v1/resident.pb.h"
#include "kernels/or_no_memory.h"
#include "kernels/status_macros.h"
#include "server/wire/grpc_status.h"
#include "server/wire/read_request.h"
#include "server/wire/registry_call.h"
#include "server/wire/tensor_convert.h"
#include "server/wire/tensor_session.h"

namespace gemmd {
namespace {

class CompressReactor final : public grpc::ServerUnaryReactor {
 public:
  CompressReactor(const HandlerTiming& timing, UnreadAnswers& unread, SendWatch& watch,
                  grpc::CallbackServerContext& context, grpc::ByteBuffer& response)
      : timing_(timing), unread_(unread), sending_(watch, context), response_(response) {}

  void Start(TensorStore& store, const Gate& gate, Compressor& compressor,
             grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    const absl::Status status =
        OrNoMemory("tensor: no memory for the request, try again later",
                   [&] { return Begin(store, gate, compressor, context, request); });
    if (!status.ok()) Finish(ToGrpcStatus(status));
  }

  // gRPC calls it no sooner than the method has returned, and the task is known by then.
  void OnCancel() override {
    const HandlerTimer timer = timing_.Begin();
    if (const std::shared_ptr<Compressor::Task> task = task_.lock()) task->Abort();
  }

  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    delete this;
  }

 private:
  absl::Status Begin(TensorStore& store, const Gate& gate, Compressor& compressor,
                     grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    v1::CompressRequest wire;
    RETURN_IF_ERROR(ReadRequest(TakeRequest(request), wire));
    ASSIGN_OR_RETURN(TensorStore::SessionUse session, SessionOf(store, gate, context));
    ASSIGN_OR_RETURN(const Compressor::Request asked, ParseCompress(wire));
    ASSIGN_OR_RETURN(
        task_, compressor.Begin(std::move(session), asked, [this](auto state) { Answer(state); }));
    return absl::OkStatus();
  }

  void Answer(const absl::StatusOr<TensorState>& state) {
    Finish(
        ToGrpcStatus(OrNoMemory("tensor: no memory for its description, ask Describe later", [&] {
          return state.ok() ? Take(AnswerOf(ToWire(*state))) : state.status();
        })));
  }

  absl::Status Take(RegistryAnswer answer) {
    ASSIGN_OR_RETURN(room_, unread_.Hold(answer.own_bytes));
    response_.Swap(&answer.bytes);
    sending_.Begin(static_cast<int64_t>(response_.Length()));
    return absl::OkStatus();
  }

  const HandlerTiming timing_;
  UnreadAnswers& unread_;
  SendWatch::Call sending_;
  grpc::ByteBuffer& response_;
  UnreadAnswers::Room room_;
  std::weak_ptr<Compressor::Task> task_;
};

}  // namespace

grpc::ServerUnaryReactor* StartCompressCall(const HandlerTiming& timing, TensorStore& store,
                                            const Gate& gate, Compressor& compressor,
                                            UnreadAnswers& unread, SendWatch& watch,
                                            grpc::CallbackServerContext& context,
                                            const grpc::ByteBuffer& request,
                                            grpc::ByteBuffer& response) {
  auto* const reactor = new CompressReactor(timing, unread, watch, context, response);
  reactor->Start(store, gate, compressor, context, request);
  return reactor;
}

}  // namespace gemmd
