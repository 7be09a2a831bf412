// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_service.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "gemmd/v1/resident.grpc.pb.h"
#include "gemmd/v1/resident.pb.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "server/store/compression.h"
#include "server/system/mutex.h"
#include "server/system/sockets.h"
#include "server/wire/calls.h"
#include "server/wire/gate.h"
#include "server/wire/incoming.h"
#include "server/wire/listing.h"
#include "server/wire/tensor_convert.h"

namespace gemmd {

std::string SessionTokenOf(const grpc::CallbackServerContext& context) {
  const auto [first, last] = context.client_metadata().equal_range(kSessionKey);
  // With two tokens, the session would be ambiguous.
  const bool is_one = first != last && std::next(first) == last;
  return is_one ? std::string(first->second.data(), first->second.size()) : "";
}

absl::StatusOr<TensorStore::SessionUse> SessionOf(TensorStore& store, const Gate& gate,
                                                  grpc::CallbackServerContext& context) {
  ASSIGN_OR_RETURN(const Gate::Caller caller, gate.CallerOf(context, Role::kTensors));
  return store.Use(SessionTokenOf(context), caller == nullptr ? "" : caller->name);
}

namespace {

using Writes = grpc::ServerWriteReactor<grpc::ByteBuffer>;
using ReadsAndWrites = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// One OpenSession call. Sends the token once and then keeps the session open until the client has
// gone or an operator has dropped the session.
//
// gRPC holds the reactor until OnDone. A thread that drops the session also holds it meanwhile.
class SessionReactor final : public AnsweringReactor<Writes>,
                             public std::enable_shared_from_this<SessionReactor> {
 public:
  SessionReactor(const ServiceParts& parts, grpc::CallbackServerContext& context)
      : AnsweringReactor(parts, HandlerOf("OpenSession"), context), parts_(parts) {}

  void Start(grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    const HandlerTimer timer = timing_.Begin();
    self_ = shared_from_this();
    if (const absl::Status status = Open(context, request); !status.ok()) EndWith(status);
    Advance();
  }

  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    self_.reset();
  }

 private:
  std::optional<Waiting> TakeAnswer() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (answer_.Length() == 0) return std::nullopt;
    Waiting token;
    token.bytes.Swap(&answer_);
    return token;
  }

  absl::Status Open(grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    RETURN_IF_ERROR(parts_.runner.CheckQuestion());
    TensorStore& store = parts_.runner.tensors();
    v1::OpenSessionRequest wire;
    RETURN_IF_ERROR(
        ReadRequest(TakeRequest(request), wire, RuleOf("/gemmd.v1.Tensors/OpenSession").max_bytes));
    ASSIGN_OR_RETURN(const Gate::Caller caller, parts_.gate.CallerOf(context, Role::kTensors));
    const std::string peer =
        caller != nullptr ? caller->name : std::string(HostOf(parts_.gate.PeerOf(context)));
    SessionOwner owner;
    owner.is_known = caller != nullptr;
    if (caller != nullptr) {
      owner.has_one_session = caller->name != kAnonymous;
      if (caller->use != nullptr) owner.rule = caller->use->rule();
      owner.max_bytes = caller->grant.tensor_bytes;
      owner.max_device_bytes = caller->grant.device_tensor_bytes;
    }
    // The session may be dropped while the call ends.
    const auto on_drop = [reactor = weak_from_this()] {
      const std::shared_ptr<SessionReactor> here = reactor.lock();
      if (here == nullptr) return;
      here->EndWith(TensorStore::SessionDropped());
      here->Advance();
    };
    ASSIGN_OR_RETURN(session_, store.OpenSession(wire.token(), peer, owner, on_drop));
    v1::OpenSessionResponse response;
    response.set_token(session_.token().ToHex());
    response.set_linger_ns(absl::ToInt64Nanoseconds(store.options().linger));
    response.set_lease_ns(absl::ToInt64Nanoseconds(store.options().lease));
    response.set_max_session_bytes(session_.account().limit());
    answer_ = AnswerOf(response).bytes;
    return absl::OkStatus();
  }

  const ServiceParts parts_;
  std::shared_ptr<SessionReactor> self_;
  TensorStore::SessionUse session_;
  grpc::ByteBuffer answer_;  // The token, until it is sent.
};

// The bytes that one read fetches from a device. The fixed cost of a read is that of a quarter of a
// megabyte.
constexpr int64_t kWindowBytes = 4 * kMaxChunkBytes;
// Fewer if the session has little room: a window takes this part of it, so that several downloads,
// each of which has two windows at times, do not leave one without. As few as that at the least.
constexpr int64_t kPartOfRoom = 8;
constexpr int64_t kMinWindowBytes = kMaxChunkBytes / 16;

// One Get call. The bytes of a tensor are sent as slices of its memory, one write after the other.
// A cancelled call ends with the write that fails.
class GetReactor final : public Writes {
 public:
  GetReactor(const ServiceParts& parts, UnreadAnswers& unread, grpc::CallbackServerContext& context)
      : parts_(parts),
        timing_{parts.times, parts.clock, HandlerOf("Get")},
        store_(parts.runner.tensors()),
        unread_(unread),
        sending_(parts.watch, context) {}

  void Start(grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    const HandlerTimer timer = timing_.Begin();
    const absl::Status status = OrNoMemory("tensor: no memory for its description, try again later",
                                           [&] { return Find(context, request); });
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
    description_room_ = nullptr;
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
  absl::Status Find(grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    RETURN_IF_ERROR(parts_.runner.CheckQuestion());
    v1::GetRequest wire;
    RETURN_IF_ERROR(
        ReadRequest(TakeRequest(request), wire, RuleOf("/gemmd.v1.Tensors/Get").max_bytes));
    ASSIGN_OR_RETURN(const TensorStore::SessionUse session,
                     SessionOf(store_, parts_.gate, context));
    ASSIGN_OR_RETURN(const TensorName name, ParseTensorRef("tensor", wire.tensor()));
    ASSIGN_OR_RETURN(tensor_, store_.Find(session, name));
    ASSIGN_OR_RETURN(const ByteRange range, ParseRange(wire, tensor_->spec.bytes));
    is_whole_ = range.bytes == tensor_->spec.bytes;
    next_ = range.offset;
    end_ = range.end();
    v1::GetResponse response;
    // The name may refer to another version by now, and the tensor may be in no table any more.
    *response.mutable_tensor() = ToWire(store_.StateOf(tensor_));
    // The description includes all scale factors of the tensor.
    RegistryAnswer description = AnswerOf(response);
    ASSIGN_OR_RETURN(description_room_, unread_.Hold(description.own_bytes, context));
    answer_ = std::move(description.bytes);
    return absl::OkStatus();
  }

  // Bytes of the tensor in host memory, starting at `offset` in the tensor.
  struct Window {
    int64_t offset = 0;
    absl::Span<const std::byte> bytes;
    std::shared_ptr<const void> owner;

    int64_t end() const { return offset + static_cast<int64_t>(bytes.size()); }
  };

  // Copies the next bytes to host memory. If the tensor is only on a device, a request for all of
  // it copies it as a whole if the host has room, and the copy stays on the host. Otherwise one
  // window at a time is copied, and no copy stays.
  void Fetch() {
    const std::shared_ptr<TensorBytes>& bytes = tensor_->bytes;
    const int64_t part = std::max(store_.FreeBytes(tensor_) / kPartOfRoom, kMinWindowBytes);
    const int64_t count = std::min({kWindowBytes, part, end_ - next_});
    if (is_whole_ || bytes->is_on_host()) return BringToHost();
    if (count == 0) {
      return EndFetching(
          {}, bytes->is_lost() ? absl::FailedPreconditionError("tensor lost") : absl::OkStatus());
    }
    absl::StatusOr<std::shared_ptr<TensorBytes>> lent = store_.Lend(tensor_, count);
    // If the host's memory for the whole tensor is charged already, no more is needed; otherwise
    // this fails.
    if (!lent.ok()) return BringToHost();
    const absl::Span<std::byte> to((*lent)->host(), static_cast<size_t>(count));
    bytes->Read(next_, to, [this, to, owner = *std::move(lent)](const absl::Status& status) {
      EndFetching({.offset = next_, .bytes = to, .owner = owner}, status);
    });
  }

  void BringToHost() {
    tensor_->bytes->BringToHost([this](const absl::Status& status) {
      if (absl::IsResourceExhausted(status) && std::exchange(is_whole_, false)) return Fetch();
      const std::shared_ptr<TensorBytes>& bytes = tensor_->bytes;
      const absl::Span<const std::byte> all(bytes->host(), static_cast<size_t>(bytes->bytes()));
      EndFetching({.offset = 0, .bytes = all, .owner = bytes}, status);
    });
  }

  void EndFetching(Window window, const absl::Status& status) {
    if (!status.ok()) return Finish(ToGrpcStatus(WithName(status, *tensor_.tensor())));
    window_ = std::move(window);
    // The description is sent first.
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

  const ServiceParts parts_;
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

// One Put call: a stream that starts an upload, or joins one, and sends bytes of it. It may finish
// during a read, because other streams may have completed the upload.
//
// gRPC holds the reactor until OnDone, and so does the upload while this stream serves it.
class PutReactor final : public AnsweringReactor<ReadsAndWrites>,
                         public std::enable_shared_from_this<PutReactor> {
 public:
  PutReactor(const ServiceParts& parts, UnreadAnswers& unread, grpc::CallbackServerContext& context)
      : AnsweringReactor(parts, HandlerOf("Put"), context),
        store_(parts.runner.tensors()),
        unread_(unread) {}

  void Start(const ServiceParts& parts, grpc::CallbackServerContext& context) {
    const HandlerTimer timer = timing_.Begin();
    self_ = shared_from_this();
    caller_ = parts.gate.FlowNameOf(context);
    if (const absl::Status status = Open(parts, context); !status.ok()) EndWith(status);
    Advance();
  }

  void OnReadDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    {
      MutexLock lock(&mutex_);
      if (end_) ok = false;
      if (!ok) reads_ended_ = true;
    }
    if (ok) return TakeRead();
    EndReading();
    EndRead();
  }

  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    if (upload_ != nullptr) store_.Leave(upload_, stream_);
    self_.reset();
  }

 private:
  absl::Status Open(const ServiceParts& parts, grpc::CallbackServerContext& context) {
    RETURN_IF_ERROR(parts.runner.CheckQuestion());
    ASSIGN_OR_RETURN(session_, SessionOf(store_, parts.gate, context));
    return absl::OkStatus();
  }

  std::optional<Waiting> TakeAnswer() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (answers_.empty()) return std::nullopt;
    Waiting next = std::move(answers_.front());
    answers_.pop_front();
    return next;
  }
  bool BeginRead() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !reads_ended_ && !std::exchange(is_reading_, true);
  }
  void Read() override { StartRead(&request_); }

  // Handles the request that was read, at once or when the upload has room for it. The next request
  // is read after that.
  void TakeRead() {
    bool is_taken = true;
    const absl::Status status =
        OrNoMemory("put: no memory for the message, try again later", [&]() -> absl::Status {
          ASSIGN_OR_RETURN(is_taken, Take());
          return absl::OkStatus();
        });
    // Another thread may already be here.
    if (!is_taken) return;
    request_.Clear();
    if (!status.ok()) EndWith(status);
    EndRead();
  }

  void EndRead() {
    {
      // Not earlier: otherwise the thread that ends a write could begin the next read into a
      // request that is still in use.
      MutexLock lock(&mutex_);
      is_reading_ = false;
    }
    Advance();
  }

  // Handles one request. Reads are sequential, so no other thread is in here. If the upload has no
  // room, returns false and calls TakeRead later.
  absl::StatusOr<bool> Take() {
    ASSIGN_OR_RETURN(const PutMessage message, ReadPutRequest(request_));
    if (message.chunk) {
      if (upload_ == nullptr) {
        return absl::FailedPreconditionError("put: got a chunk first, want begin or join");
      }
      return store_.Write(
          session_, upload_, message.chunk->offset, message.chunk->pieces,
          [self = shared_from_this()] { self->TakeRead(); }, stream_);
    }
    if (has_begun_) return Invalid("put", "no chunk", "one");
    has_begun_ = true;
    RETURN_IF_ERROR(BeginOrJoin(message.other));
    return true;
  }

  absl::Status BeginOrJoin(const v1::PutRequest& wire) {
    switch (wire.step_case()) {
      case v1::PutRequest::kBegin: return Begin(wire.begin());
      case v1::PutRequest::kJoin: return Join(wire.join());
      default:
        return absl::FailedPreconditionError("put: got an empty first request, want begin or join");
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
    return Serve(std::move(beginning.upload));
  }

  absl::Status Join(const std::string& id) {
    ASSIGN_OR_RETURN(std::shared_ptr<Upload> upload, store_.Join(session_, id));
    scales_ = Scales::kLeftOut;
    return Serve(std::move(upload));
  }

  absl::Status Serve(std::shared_ptr<Upload> upload) {
    ASSIGN_OR_RETURN(stream_, store_.Attach(upload));
    upload_ = std::move(upload);
    v1::PutState state;
    state.set_upload(upload_->id().ToBytes());
    for (const ByteRange& range : upload_->Missing()) {
      v1::ByteRange& missing = *state.add_missing();
      missing.set_offset(range.offset);
      missing.set_bytes(range.bytes);
    }
    Tell(state);
    upload_->Listen(stream_,
                    [self = shared_from_this()](const absl::StatusOr<TensorState>& result) {
                      result.ok() ? self->TellEnd(*result) : self->EndWith(result.status());
                      self->Advance();
                    });
    return absl::OkStatus();
  }

  // The client sends nothing more. If all bytes have arrived, the end of the upload will follow.
  void EndReading() {
    if (!has_begun_) {
      EndWith(absl::FailedPreconditionError("put: got nothing, want begin or join"));
    } else if (upload_ == nullptr || !upload_->HasAll()) {
      EndWith(absl::OkStatus());
    }
  }

  void Tell(v1::PutState state) {
    state.set_max_chunk_bytes(kMaxChunkBytes);
    v1::PutResponse response;
    *response.mutable_state() = std::move(state);
    if (const absl::Status status = Queue(response, std::nullopt); !status.ok()) EndWith(status);
  }

  // Queues the last answer. A stream that sent the tensor's scale factors gets all of them back.
  // Streams that joined get none, since a megabyte for each would delay the thread that ends the
  // upload. If there is no room for the factors, they are left out.
  void TellEnd(const TensorState& tensor) {
    const auto tell = [&](Scales scales) {
      return OrNoMemory("put: no memory for the tensor's description", [&] {
        v1::PutResponse response;
        *response.mutable_tensor() = ToWire(tensor, scales);
        return Queue(response, grpc::Status::OK);
      });
    };
    if (tell(scales_).ok()) return;
    if (const absl::Status status = tell(Scales::kLeftOut); !status.ok()) EndWith(status);
  }

  // Queues an answer, with the end of the call after it if `end` is set. Does nothing if the call
  // is already ending: after its end the service may have gone, while a thread of the store that
  // ends the upload still comes here.
  absl::Status Queue(const v1::PutResponse& response, std::optional<grpc::Status> end) {
    RegistryAnswer answer = AnswerOf(response);
    MutexLock lock(&mutex_);
    if (end_) return absl::OkStatus();
    ASSIGN_OR_RETURN(UnreadAnswers::Room room, unread_.HoldFor(caller_, answer.own_bytes));
    answers_.push_back({std::move(answer.bytes), std::move(room)});
    end_ = std::move(end);
    return absl::OkStatus();
  }

  TensorStore& store_;
  UnreadAnswers& unread_;
  std::shared_ptr<PutReactor> self_;
  std::string caller_;

  // Used only by the reader.
  TensorStore::SessionUse session_;
  grpc::ByteBuffer request_;
  bool has_begun_ = false;
  std::shared_ptr<Upload> upload_;
  Upload::StreamId stream_ = 0;

  Scales scales_ = Scales::kTold;
  std::deque<Waiting> answers_ ABSL_GUARDED_BY(mutex_);
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;  // Nothing more will be read.
};

// One Compress call, started by the call's thread and answered by the compressor's. If the call
// ends early, by the client or by its deadline, the work is cancelled, too.
class CompressReactor final : public AnsweredCall {
 public:
  CompressReactor(const ServiceParts& parts, UnreadAnswers& unread,
                  grpc::CallbackServerContext& context, grpc::ByteBuffer& response)
      : AnsweredCall({parts.times, parts.clock, HandlerOf("Compress")}, unread, parts.watch,
                     context, response) {}

  void Start(const ServiceParts& parts, Compressor& compressor, const grpc::ByteBuffer& request) {
    const HandlerTimer timer = timing_.Begin();
    const absl::Status status = OrNoMemory("tensor: no memory for the request, try again later",
                                           [&] { return Begin(parts, compressor, request); });
    if (!status.ok()) Answer([&] { return status; });
  }

  // gRPC calls this only after the method has returned, and the task is known by then.
  void OnCancel() override {
    const HandlerTimer timer = timing_.Begin();
    if (const std::shared_ptr<Compressor::Task> task = task_.lock()) task->Abort();
  }

 private:
  absl::Status Begin(const ServiceParts& parts, Compressor& compressor,
                     const grpc::ByteBuffer& request) {
    RETURN_IF_ERROR(parts.runner.CheckQuestion());
    v1::CompressRequest wire;
    RETURN_IF_ERROR(
        ReadRequest(TakeRequest(request), wire, RuleOf("/gemmd.v1.Tensors/Compress").max_bytes));
    ASSIGN_OR_RETURN(TensorStore::SessionUse session,
                     SessionOf(parts.runner.tensors(), parts.gate, context_));
    ASSIGN_OR_RETURN(const Compressor::Request asked, ParseCompress(wire));
    const auto answer = [this](const absl::StatusOr<TensorState>& state) {
      Answer(
          [&]() -> absl::StatusOr<RegistryAnswer> {
            if (!state.ok()) return state.status();
            return AnswerOf(ToWire(*state));
          },
          "tensor: no memory for its description, call Describe later");
    };
    ASSIGN_OR_RETURN(task_, compressor.Begin(std::move(session), asked, answer));
    return absl::OkStatus();
  }

  std::weak_ptr<Compressor::Task> task_;
};

// The maximum bytes of unread listings and descriptions.
constexpr int64_t kMaxUnreadTensorBytes = int64_t{32} << 20;

template <typename Base>
using RawTensorCalls =
    v1::Tensors::WithRawCallbackMethod_OpenSession<v1::Tensors::WithRawCallbackMethod_Put<
        v1::Tensors::WithRawCallbackMethod_Get<v1::Tensors::WithRawCallbackMethod_Compress<Base>>>>;

class TensorService final : public AnsweredService<RawTensorCalls<v1::Tensors::Service>> {
 public:
  explicit TensorService(const ServiceParts& parts)
      : AnsweredService(parts, kMaxUnreadTensorBytes),
        store_(parts.runner.tensors()),
        compressor_(store_) {
    const auto has_memory = [this](Context&) { return parts_.runner.CheckQuestion(); };
    // Also served when memory is short: deleting frees memory, and tensors must not be lost
    // meanwhile because a lease could not be renewed.
    const auto always = [](Context&) { return absl::OkStatus(); };
    const std::string_view name = v1::Tensors::service_full_name();
    Add(name, HandlerOf("List"), has_memory, &TensorService::List);
    Add(name, HandlerOf("Describe"), has_memory, &TensorService::Describe);
    Add(name, HandlerOf("Delete"), always, &TensorService::Delete);
    Add(name, HandlerOf("KeepAlive"), always, &TensorService::KeepAlive);
  }

  Writes* OpenSession(Context* context, const grpc::ByteBuffer* request) override {
    const auto reactor = std::make_shared<SessionReactor>(parts_, *context);
    reactor->Start(*context, *request);
    return reactor.get();
  }

  ReadsAndWrites* Put(Context* context) override {
    const auto reactor = std::make_shared<PutReactor>(parts_, unread_, *context);
    reactor->Start(parts_, *context);
    return reactor.get();
  }

  Writes* Get(Context* context, const grpc::ByteBuffer* request) override {
    auto* const reactor = new GetReactor(parts_, unread_, *context);
    reactor->Start(*context, *request);
    return reactor;
  }

  grpc::ServerUnaryReactor* Compress(Context* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    auto* const reactor = new CompressReactor(parts_, unread_, *context, *response);
    reactor->Start(parts_, compressor_, *request);
    return reactor;
  }

 private:
  absl::StatusOr<RegistryAnswer> List(Context& context, const v1::ListTensorsRequest& wire) {
    ASSIGN_OR_RETURN(const TensorStore::SessionUse session,
                     SessionOf(store_, parts_.gate, context));
    ASSIGN_OR_RETURN(const NamePattern pattern, NamePattern::Parse("pattern", wire.pattern()));
    v1::ListTensorsResponse response;
    for (const TensorState& state : store_.List(session)) {
      if (!wire.pattern().empty() && !pattern.Matches(state.tensor->name)) continue;
      *response.add_tensors() = ToWire(state, Scales::kLeftOut);
    }
    const Account& account = session.account();
    response.set_session_bytes(account.used());
    response.set_max_session_bytes(account.limit());
    response.set_free_bytes(store_.FreeBytes(session));
    return AnswerOf(response);
  }

  absl::StatusOr<RegistryAnswer> Describe(Context& context, const v1::TensorRef& wire) {
    ASSIGN_OR_RETURN(const TensorStore::SessionUse session,
                     SessionOf(store_, parts_.gate, context));
    ASSIGN_OR_RETURN(const TensorName name, ParseTensorRef("tensor", wire));
    ASSIGN_OR_RETURN(const TensorState state, store_.Describe(session, name));
    return AnswerOf(ToWire(state));
  }

  absl::StatusOr<RegistryAnswer> Delete(Context& context, const v1::TensorRef& wire) {
    ASSIGN_OR_RETURN(const TensorStore::SessionUse session,
                     SessionOf(store_, parts_.gate, context));
    ASSIGN_OR_RETURN(const TensorName name, ParseTensorRef("tensor", wire));
    RETURN_IF_ERROR(store_.Delete(session, name));
    return AnswerOf(v1::DeleteTensorResponse());
  }

  absl::StatusOr<RegistryAnswer> KeepAlive(Context& context, const v1::KeepAliveRequest& wire) {
    ASSIGN_OR_RETURN(const TensorStore::SessionUse session,
                     SessionOf(store_, parts_.gate, context));
    ASSIGN_OR_RETURN(const TensorName name, ParseTensorRef("tensor", wire.tensor()));
    ASSIGN_OR_RETURN(
        const TensorState state,
        store_.KeepAlive(
            session, name,
            wire.has_lease_ns() ? std::optional<int64_t>(wire.lease_ns()) : std::nullopt,
            wire.has_pinned() ? std::optional<bool>(wire.pinned()) : std::nullopt));
    return AnswerOf(ToWire(state));
  }

  TensorStore& store_;
  Compressor compressor_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTensorService(const ServiceParts& parts) {
  return std::make_unique<TensorService>(parts);
}

}  // namespace gemmd
