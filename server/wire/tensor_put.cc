// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_put.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "kernels/or_no_memory.h"
#include "kernels/status_macros.h"
#include "server/system/mutex.h"
#include "server/wire/grpc_status.h"
#include "server/wire/registry_call.h"
#include "server/wire/tensor_convert.h"
#include "server/wire/tensor_message.h"
#include "server/wire/tensor_session.h"

namespace gemmd {
namespace {

// The state changes under the lock; what follows from it (read, write, finish) is decided there and
// done afterwards. At most one read and one write are under way. The call may finish while a read
// is under way, which gRPC then ends: the upload may be complete by what other streams brought.
//
// gRPC holds the reactor until OnDone, and so does the upload while this stream serves it.
class PutReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                         public std::enable_shared_from_this<PutReactor> {
 public:
  PutReactor(TensorStore& store, UnreadAnswers& unread, SendWatch& watch, HandlerTimes& times,
             grpc::CallbackServerContext& context, const Clock& clock)
      : store_(store),
        unread_(unread),
        timing_{times, clock, Handler::kPut},
        sending_(watch, context) {}

  void Start(const Gate& gate, grpc::CallbackServerContext& context) {
    const HandlerTimer timer = timing_.Begin();
    self_ = shared_from_this();
    absl::StatusOr<TensorStore::SessionUse> session = SessionOf(store_, gate, context);
    if (session.ok()) {
      session_ = *std::move(session);
    } else {
      EndWith(session.status());
    }
    Advance();
  }

  void OnReadDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    {
      MutexLock lock(&mutex_);
      if (end_) ok = false;
      if (!ok) reads_ended_ = true;
    }
    if (ok) {
      const absl::Status status =
          OrNoMemory("put: no memory for the message, try again later", [&] { return Take(); });
      request_.Clear();
      if (!status.ok()) EndWith(status);
    } else {
      EndReading();
    }
    {
      // No sooner, lest who ends a write begins the next read into a request that is still taken.
      MutexLock lock(&mutex_);
      is_reading_ = false;
    }
    Advance();
  }

  void OnWriteDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    sending_.End();
    {
      MutexLock lock(&mutex_);
      is_writing_ = false;
      written_room_ = UnreadAnswers::Room();
      if (!ok) is_broken_ = true;
    }
    Advance();
  }

  void OnCancel() override {
    const HandlerTimer timer = timing_.Begin();
    {
      MutexLock lock(&mutex_);
      is_broken_ = true;
    }
    Advance();
  }

  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    if (upload_ != nullptr) store_.Leave(upload_, stream_);
    self_.reset();
  }

 private:
  // An answer that waits to be written.
  struct Waiting {
    grpc::ByteBuffer bytes;
    UnreadAnswers::Room room;
  };

  // One request. Reads come one after the other, so nobody else is here.
  absl::Status Take() {
    ASSIGN_OR_RETURN(const PutMessage message, ReadPutRequest(request_));
    if (message.chunk) {
      if (upload_ == nullptr) {
        return absl::FailedPreconditionError("put: got a chunk first, want begin or join");
      }
      return store_.Write(session_, upload_, message.chunk->offset, message.chunk->pieces);
    }
    if (has_begun_) return absl::InvalidArgumentError("put: got no chunk, want one");
    has_begun_ = true;
    switch (message.other.step_case()) {
      case v1::PutRequest::kBegin: return Begin(message.other.begin());
      case v1::PutRequest::kJoin: return Join(message.other.join());
      default: return absl::FailedPreconditionError("put: got neither first, want begin or join");
    }
  }

  absl::Status Begin(const v1::PutBegin& wire) {
    ASSIGN_OR_RETURN(NewUpload upload, ParsePutBegin(wire));
    ASSIGN_OR_RETURN(TensorStore::Beginning beginning,
                     store_.Begin(session_, std::move(upload.spec), std::move(upload.keep),
                                  upload.digest, wire.device()));
    if (beginning.tensor) {
      Tell(v1::PutState());
      TellEnd(*beginning.tensor);
      return absl::OkStatus();
    }
    Serve(std::move(beginning.upload));
    return absl::OkStatus();
  }

  absl::Status Join(const std::string& id) {
    ASSIGN_OR_RETURN(std::shared_ptr<Upload> upload, store_.Join(session_, id));
    RETURN_IF_ERROR(upload->CheckRoom());
    scales_ = Scales::kLeftOut;
    Serve(std::move(upload));
    return absl::OkStatus();
  }

  void Serve(std::shared_ptr<Upload> upload) {
    upload_ = std::move(upload);
    v1::PutState state;
    state.set_upload(upload_->id().ToBytes());
    for (const ByteRange& range : upload_->Missing()) {
      v1::ByteRange& missing = *state.add_missing();
      missing.set_offset(range.offset);
      missing.set_bytes(range.bytes);
    }
    Tell(state);
    stream_ = store_.Attach(upload_,
                            [self = shared_from_this()](const absl::StatusOr<TensorState>& result) {
                              result.ok() ? self->TellEnd(*result) : self->EndWith(result.status());
                              self->Advance();
                            });
  }

  // The client sends nothing more. Where everything is there, the end of the upload is still to
  // come.
  void EndReading() {
    if (!has_begun_) {
      EndWith(absl::FailedPreconditionError("put: got nothing, want begin or join"));
    } else if (upload_ == nullptr || !upload_->Missing().empty()) {
      EndWith(absl::OkStatus());
    }
  }

  void Tell(v1::PutState state) {
    state.set_max_chunk_bytes(kMaxChunkBytes);
    v1::PutResponse response;
    *response.mutable_state() = std::move(state);
    if (const absl::Status status = Queue(response, std::nullopt); !status.ok()) EndWith(status);
  }

  // The last answer. It has all factors of the tensor for the stream that has sent them: a megabyte
  // for each one that joined would hold up whoever ends the upload. Where there is no room for
  // them, it comes without.
  void TellEnd(const TensorState& tensor) {
    const auto tell = [&](Scales scales) {
      return OrNoMemory("put: no memory to tell of the tensor", [&] {
        v1::PutResponse response;
        *response.mutable_tensor() = ToWire(tensor, scales);
        return Queue(response, grpc::Status::OK);
      });
    };
    if (tell(scales_).ok()) return;
    if (const absl::Status status = tell(Scales::kLeftOut); !status.ok()) EndWith(status);
  }

  // An answer to be written, with the end that comes after it. Nothing where the call ends already.
  absl::Status Queue(const v1::PutResponse& response, std::optional<grpc::Status> end) {
    RegistryAnswer answer = AnswerOf(response);
    ASSIGN_OR_RETURN(UnreadAnswers::Room room, unread_.Hold(answer.own_bytes));
    MutexLock lock(&mutex_);
    if (end_) return absl::OkStatus();
    answers_.push_back({std::move(answer.bytes), std::move(room)});
    end_ = std::move(end);
    return absl::OkStatus();
  }

  void EndWith(const absl::Status& status) {
    MutexLock lock(&mutex_);
    if (!end_) end_ = ToGrpcStatus(status);
  }

  void Advance() ABSL_LOCKS_EXCLUDED(mutex_) {
    bool is_to_read = false;
    bool is_to_write = false;
    std::optional<grpc::Status> last;
    {
      MutexLock lock(&mutex_);
      if (is_broken_) {
        answers_.clear();
        if (!end_) end_ = grpc::Status::CANCELLED;
      }
      if (!is_writing_ && !answers_.empty()) {
        answer_ = std::move(answers_.front().bytes);
        written_room_ = std::move(answers_.front().room);
        answers_.pop_front();
        is_to_write = is_writing_ = true;
      }
      if (!end_ && !is_reading_ && !reads_ended_) is_to_read = is_reading_ = true;
      if (end_ && !is_writing_ && !is_finished_) {
        is_finished_ = true;
        last = *end_;
      }
    }
    if (is_to_write) {
      sending_.Begin(static_cast<int64_t>(answer_.Length()));
      StartWrite(&answer_);
    }
    if (is_to_read) StartRead(&request_);
    if (last) Finish(*last);
  }

  TensorStore& store_;
  UnreadAnswers& unread_;
  const HandlerTiming timing_;
  SendWatch::Call sending_;
  std::shared_ptr<PutReactor> self_;

  // Used by whoever reads.
  TensorStore::SessionUse session_;
  grpc::ByteBuffer request_;
  bool has_begun_ = false;
  std::shared_ptr<Upload> upload_;
  Upload::StreamId stream_ = 0;

  Mutex mutex_;
  Scales scales_ = Scales::kTold;
  grpc::ByteBuffer answer_;  // Being written: changed only while none is.
  UnreadAnswers::Room written_room_ ABSL_GUARDED_BY(mutex_);  // That of what is being written.
  std::deque<Waiting> answers_ ABSL_GUARDED_BY(mutex_);
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;  // Nothing more is read.
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;    // The client has gone.
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);  // Once all answers are written.
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPutCall(
    TensorStore& store, const Gate& gate, UnreadAnswers& unread, SendWatch& watch,
    HandlerTimes& times, grpc::CallbackServerContext& context, const Clock& clock) {
  const auto reactor = std::make_shared<PutReactor>(store, unread, watch, times, context, clock);
  reactor->Start(gate, context);
  return reactor.get();
}

}  // namespace gemmd
