// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_get.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/wire/grpc_status.h"
#include "server/wire/registry_call.h"
#include "server/wire/tensor_convert.h"
#include "server/wire/tensor_message.h"
#include "server/wire/tensor_session.h"

namespace gemmd {
namespace {

// One write follows the other; a call that is cancelled ends with the write that fails.
class GetReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  GetReactor(TensorStore& store, SendWatch& watch, grpc::CallbackServerContext& context)
      : store_(store), sending_(watch, context) {}

  void Start(const grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    if (const absl::Status status = Find(context, request); !status.ok()) {
      Finish(ToGrpcStatus(status));
      return;
    }
    // From a device that alone has them, which takes a while.
    tensor_->bytes->BringToHost([this](const absl::Status& status) {
      if (status.ok()) {
        Write();
      } else {
        Finish(ToGrpcStatus(WithName(status, *tensor_.tensor())));
      }
    });
  }

  void OnWriteDone(bool ok) override {
    sending_.End();
    if (!ok) {
      Finish(grpc::Status::CANCELLED);
    } else if (next_ == end_) {
      Finish(grpc::Status::OK);
    } else {
      const int64_t count = std::min(kMaxChunkBytes, end_ - next_);
      const std::shared_ptr<TensorBytes>& bytes = tensor_->bytes;
      answer_ = ChunkAnswer(next_, {bytes->host() + next_, static_cast<size_t>(count)}, bytes);
      next_ += count;
      Write();
    }
  }

  void OnDone() override { delete this; }

 private:
  absl::Status Find(const grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    v1::GetRequest wire;
    RETURN_IF_ERROR(ReadRequest(request, wire));
    ASSIGN_OR_RETURN(const TensorStore::SessionUse session, SessionOf(store_, context));
    ASSIGN_OR_RETURN(const TensorName name, ParseTensorRef("tensor", wire.tensor()));
    ASSIGN_OR_RETURN(tensor_, store_.Find(session, name));
    const int64_t size = tensor_->spec.bytes;
    const int64_t offset = wire.offset();
    if (offset < 0 || offset > size) {
      return absl::OutOfRangeError(
          Concat("offset: got ", offset, ", want 0 to the tensor's bytes, ", size));
    }
    const int64_t bytes = wire.has_bytes() ? wire.bytes() : size - offset;
    if (bytes < 0 || bytes > size - offset) {
      return absl::OutOfRangeError(Concat("bytes: got ", bytes, " from ", offset,
                                          " on, want at most the ", size - offset,
                                          " that are left of the tensor"));
    }
    next_ = offset;
    end_ = offset + bytes;
    ASSIGN_OR_RETURN(const TensorState state, store_.Describe(session, tensor_->handle));
    v1::GetResponse response;
    *response.mutable_tensor() = ToWire(state);
    answer_ = AnswerOf(response).bytes;
    return absl::OkStatus();
  }

  void Write() {
    sending_.Begin(static_cast<int64_t>(answer_.Length()));
    StartWrite(&answer_);
  }

  TensorStore& store_;
  SendWatch::Call sending_;
  TensorStore::TensorUse tensor_;
  grpc::ByteBuffer answer_;
  int64_t next_ = 0;
  int64_t end_ = 0;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGetCall(TensorStore& store, SendWatch& watch,
                                                         grpc::CallbackServerContext& context,
                                                         const grpc::ByteBuffer& request) {
  auto* const reactor = new GetReactor(store, watch, context);
  reactor->Start(context, request);
  return reactor;
}

}  // namespace gemmd
