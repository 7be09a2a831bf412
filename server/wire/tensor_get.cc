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

// Read from a device at a time: a read costs as much as a quarter of a megabyte.
constexpr int64_t kWindowBytes = 4 * kMaxChunkBytes;

// One write follows the other; a call that is cancelled ends with the write that fails.
class GetReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  GetReactor(TensorStore& store, SendWatch& watch, grpc::CallbackServerContext& context)
      : store_(store), sending_(watch, context) {}

  void Start(const Gate& gate, grpc::CallbackServerContext& context,
             const grpc::ByteBuffer& request) {
    if (const absl::Status status = Find(gate, context, request); !status.ok()) {
      Finish(ToGrpcStatus(status));
      return;
    }
    Fetch();
  }

  void OnWriteDone(bool ok) override {
    sending_.End();
    if (!ok) {
      Finish(grpc::Status::CANCELLED);
    } else if (next_ == end_) {
      Finish(grpc::Status::OK);
    } else if (next_ == window_.end()) {
      Fetch();
    } else {
      WriteChunk();
    }
  }

  void OnDone() override { delete this; }

 private:
  absl::Status Find(const Gate& gate, grpc::CallbackServerContext& context,
                    const grpc::ByteBuffer& request) {
    v1::GetRequest wire;
    RETURN_IF_ERROR(ReadRequest(request, wire));
    ASSIGN_OR_RETURN(const TensorStore::SessionUse session, SessionOf(store_, gate, context));
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
    is_whole_ = bytes == size;
    next_ = offset;
    end_ = offset + bytes;
    ASSIGN_OR_RETURN(const TensorState state, store_.Describe(session, tensor_->handle));
    v1::GetResponse response;
    *response.mutable_tensor() = ToWire(state);
    answer_ = AnswerOf(response).bytes;
    return absl::OkStatus();
  }

  // Bytes of the tensor that lie in memory of the host, from `offset` of the tensor on.
  struct Window {
    int64_t offset = 0;
    absl::Span<const std::byte> bytes;
    std::shared_ptr<const void> owner;

    int64_t end() const { return offset + static_cast<int64_t>(bytes.size()); }
  };

  // Gets the next bytes to memory of the host. A tensor that is on a device alone comes as a whole
  // where all of it is asked for, and stays on the host too; otherwise a window at a time comes,
  // and nothing stays.
  void Fetch() {
    const std::shared_ptr<TensorBytes>& bytes = tensor_->bytes;
    const int64_t count = std::min(kWindowBytes, end_ - next_);
    if (is_whole_ || bytes->is_on_host()) return BringToHost();
    if (count == 0) {
      return EndFetching(
          {}, bytes->is_lost() ? absl::FailedPreconditionError("tensor lost") : absl::OkStatus());
    }
    absl::StatusOr<std::shared_ptr<TensorBytes>> lent = store_.Lend(tensor_, count);
    // The room for all of the tensor is there already.
    if (!lent.ok()) return BringToHost();
    const absl::Span<std::byte> to((*lent)->host(), static_cast<size_t>(count));
    bytes->Read(next_, to, [this, to, owner = *std::move(lent)](const absl::Status& status) {
      EndFetching({.offset = next_, .bytes = to, .owner = owner}, status);
    });
  }

  void BringToHost() {
    tensor_->bytes->BringToHost([this](const absl::Status& status) {
      const std::shared_ptr<TensorBytes>& bytes = tensor_->bytes;
      const absl::Span<const std::byte> all(bytes->host(), static_cast<size_t>(bytes->bytes()));
      EndFetching({.offset = 0, .bytes = all, .owner = bytes}, status);
    });
  }

  void EndFetching(Window window, const absl::Status& status) {
    if (!status.ok()) return Finish(ToGrpcStatus(WithName(status, *tensor_.tensor())));
    window_ = std::move(window);
    // The description comes first.
    std::exchange(is_described_, true) ? WriteChunk() : Write();
  }

  void WriteChunk() {
    const int64_t count = std::min({kMaxChunkBytes, end_ - next_, window_.end() - next_});
    answer_ = ChunkAnswer(next_,
                          window_.bytes.subspan(static_cast<size_t>(next_ - window_.offset),
                                                static_cast<size_t>(count)),
                          window_.owner);
    next_ += count;
    Write();
  }

  void Write() {
    sending_.Begin(static_cast<int64_t>(answer_.Length()));
    StartWrite(&answer_);
  }

  TensorStore& store_;
  SendWatch::Call sending_;
  TensorStore::TensorUse tensor_;
  grpc::ByteBuffer answer_;
  bool is_whole_ = false;
  bool is_described_ = false;
  Window window_;
  int64_t next_ = 0;
  int64_t end_ = 0;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGetCall(TensorStore& store, const Gate& gate,
                                                         SendWatch& watch,
                                                         grpc::CallbackServerContext& context,
                                                         const grpc::ByteBuffer& request) {
  auto* const reactor = new GetReactor(store, watch, context);
  reactor->Start(gate, context, request);
  return reactor;
}

}  // namespace gemmd
