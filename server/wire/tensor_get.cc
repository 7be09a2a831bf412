// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_get.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/or_no_memory.h"
#include "kernels/status_macros.h"
#include "server/wire/grpc_status.h"
#include "server/wire/read_request.h"
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
  GetReactor(const HandlerTiming& timing, TensorStore& store, UnreadAnswers& unread,
             SendWatch& watch, grpc::CallbackServerContext& context)
      : timing_(timing), store_(store), unread_(unread), sending_(watch, context) {}

  void Start(const Gate& gate, grpc::CallbackServerContext& context,
             const grpc::ByteBuffer& request) {
    const absl::Status status = OrNoMemory("tensor: no memory for its description, try again later",
                                           [&] { return Find(gate, context, request); });
    if (!status.ok()) {
      TellRetryAfter(status, context);
      Finish(ToGrpcStatus(status));
      return;
    }
    Fetch();
  }

  void OnWriteDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    sending_.End();
    description_room_ = UnreadAnswers::Room();
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

  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    delete this;
  }

 private:
  absl::Status Find(const Gate& gate, grpc::CallbackServerContext& context,
                    const grpc::ByteBuffer& request) {
    v1::GetRequest wire;
    RETURN_IF_ERROR(ReadRequest(TakeRequest(request), wire));
    ASSIGN_OR_RETURN(const TensorStore::SessionUse session, SessionOf(store_, gate, context));
    ASSIGN_OR_RETURN(const TensorName name, ParseTensorRef("tensor", wire.tensor()));
    ASSIGN_OR_RETURN(tensor_, store_.Find(session, name));
    ASSIGN_OR_RETURN(const ByteRange range, ParseRange(wire, tensor_->spec.bytes));
    is_whole_ = range.bytes == tensor_->spec.bytes;
    next_ = range.offset;
    end_ = range.end();
    v1::GetResponse response;
    // Another version may have its name by now, and it may be in no table any more.
    *response.mutable_tensor() = ToWire(store_.StateOf(tensor_));
    // It has all factors of the tensor.
    RegistryAnswer description = AnswerOf(response);
    ASSIGN_OR_RETURN(description_room_, unread_.Hold(description.own_bytes));
    answer_ = std::move(description.bytes);
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

  const HandlerTiming timing_;
  TensorStore& store_;
  UnreadAnswers& unread_;
  SendWatch::Call sending_;
  UnreadAnswers::Room description_room_;
  TensorStore::TensorUse tensor_;
  grpc::ByteBuffer answer_;
  bool is_whole_ = false;
  bool is_described_ = false;
  Window window_;
  int64_t next_ = 0;
  int64_t end_ = 0;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGetCall(const HandlerTiming& timing,
                                                         TensorStore& store, const Gate& gate,
                                                         UnreadAnswers& unread, SendWatch& watch,
                                                         grpc::CallbackServerContext& context,
                                                         const grpc::ByteBuffer& request) {
  auto* const reactor = new GetReactor(timing, store, unread, watch, context);
  reactor->Start(gate, context, request);
  return reactor;
}

}  // namespace gemmd
