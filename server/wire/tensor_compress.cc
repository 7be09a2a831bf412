// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_compress.h"

#include <memory>
#include <utility>

#include "gemmd/v1/resident.pb.h"
#include "kernels/status_macros.h"
#include "server/wire/grpc_status.h"
#include "server/wire/registry_call.h"
#include "server/wire/tensor_convert.h"
#include "server/wire/tensor_session.h"

namespace gemmd {
namespace {

class CompressReactor final : public grpc::ServerUnaryReactor {
 public:
  CompressReactor(UnreadAnswers& unread, SendWatch& watch, grpc::CallbackServerContext& context,
                  grpc::ByteBuffer& response)
      : unread_(unread), sending_(watch, context), response_(response) {}

  void Start(TensorStore& store, const Gate& gate, Compressor& compressor,
             grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    const absl::Status status = Begin(store, gate, compressor, context, request);
    if (!status.ok()) Finish(ToGrpcStatus(status));
  }

  // gRPC calls it no sooner than the method has returned, and the task is known by then.
  void OnCancel() override {
    if (const std::shared_ptr<Compressor::Task> task = task_.lock()) task->Abort();
  }

  void OnDone() override { delete this; }

 private:
  absl::Status Begin(TensorStore& store, const Gate& gate, Compressor& compressor,
                     grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    v1::CompressRequest wire;
    RETURN_IF_ERROR(ReadRequest(request, wire));
    ASSIGN_OR_RETURN(TensorStore::SessionUse session, SessionOf(store, gate, context));
    Compressor::Request asked;
    ASSIGN_OR_RETURN(asked.tensor, ParseTensorRef("tensor", wire.tensor()));
    if (wire.has_mask()) {
      ASSIGN_OR_RETURN(asked.mask, ParseTensorRef("mask", wire.mask()));
    }
    asked.keep = ParseKeeping(wire.keep());
    ASSIGN_OR_RETURN(
        task_, compressor.Begin(std::move(session), asked, [this](auto state) { Answer(state); }));
    return absl::OkStatus();
  }

  void Answer(const absl::StatusOr<TensorState>& state) {
    Finish(ToGrpcStatus(state.ok() ? Take(AnswerOf(ToWire(*state))) : state.status()));
  }

  absl::Status Take(RegistryAnswer answer) {
    ASSIGN_OR_RETURN(room_, unread_.Hold(answer.own_bytes));
    response_.Swap(&answer.bytes);
    WatchAnswer(response_, sending_);
    return absl::OkStatus();
  }

  UnreadAnswers& unread_;
  SendWatch::Call sending_;
  grpc::ByteBuffer& response_;
  UnreadAnswers::Room room_;
  std::weak_ptr<Compressor::Task> task_;
};

}  // namespace

grpc::ServerUnaryReactor* StartCompressCall(TensorStore& store, const Gate& gate,
                                            Compressor& compressor, UnreadAnswers& unread,
                                            SendWatch& watch, grpc::CallbackServerContext& context,
                                            const grpc::ByteBuffer& request,
                                            grpc::ByteBuffer& response) {
  auto* const reactor = new CompressReactor(unread, watch, context, response);
  reactor->Start(store, gate, compressor, context, request);
  return reactor;
}

}  // namespace gemmd
