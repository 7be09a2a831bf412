// SPDX-License-Identifier: Apache-2.0
//
// What calls of all services share: the conversion of a status to gRPC's, the answering of unary
// calls, and the limits on answers that their peers do not read.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/matrix/status.h"
#include "server/metrics/handler_times.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"
#include "server/system/one_at_a_time.h"
#include "server/wire/incoming.h"

namespace gemmd {

class Gate;
class ProductRunner;
class SendWatch;

// The parts of the server that its services share, borrowed.
struct ServiceParts {
  ProductRunner& runner;
  const Gate& gate;
  ReceiveQuota& quota;
  SendWatch& watch;
  HandlerTimes& times;
  const Clock& clock;
};

// The only place where absl::Status becomes grpc::Status. The codes have the same numbers in both.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Adds to the trailing metadata how many milliseconds to wait before a retry, if the status has
// such a time. Call it before the call is finished.
void TellRetryAfter(const absl::Status& status, grpc::CallbackServerContext& context);

// Ends calls whose peer does not read its answers, which frees the memory that the calls hold.
//
// gRPC reports no progress of a message being sent: neither how much of it has left nor, before the
// end of the call, that its memory is no longer needed. So a peer must start to read within a
// timeout and then read at a minimum rate. Where the system reports how many bytes the peer of a
// connection has acknowledged, a call is ended earlier: once nothing was acknowledged for the
// timeout.
class SendWatch {
 public:
  struct Limits {
    // The time allowed without progress, added to the time that the bytes take at the minimum rate.
    absl::Duration timeout = absl::Seconds(10);
    int64_t min_bytes_per_second = int64_t{8} << 20;  // The minimum rate of reading.
  };

  // The bytes that a peer, named as gRPC names it, has acknowledged since its connection began, or
  // nullopt if the system does not report them. The bytes may still be in buffers of the peer's
  // system.
  using BytesTaken = std::function<std::optional<int64_t>(const std::string& peer)>;

  // Fewer bytes are no progress: a peer that answers pings and reads nothing acknowledges this few.
  static constexpr int64_t kMinProgressBytes = int64_t{64} << 10;

  // The answer that one call is sending. Watched from Begin to End. Threads: one at a time.
  class Call {
   public:
    // Borrows both until End. After End the call may outlive them.
    Call(SendWatch& watch, grpc::CallbackServerContext& context)
        : watch_(watch), context_(context) {}
    virtual ~Call() { End(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // An answer of `bytes` is about to be handed to gRPC.
    void Begin(int64_t bytes) {
      is_sending_ = true;
      watch_.Begin(*this, bytes);
    }
    // The answer has left, or the call has ended.
    void End() {
      if (std::exchange(is_sending_, false)) watch_.End(*this);
    }

   protected:
    // Virtual for tests, whose contexts have no call.
    virtual std::string peer() const { return context_.peer(); }
    virtual void Cancel() { context_.TryCancel(); }

   private:
    friend class SendWatch;
    SendWatch& watch_;
    grpc::CallbackServerContext& context_;
    bool is_sending_ = false;
    // Guarded by the watch's lock:
    int64_t begun_ns_ = 0;
    int64_t due_ns_ = 0;       // The deadline for the whole answer if sending began at once.
    int64_t moved_ns_ = 0;     // When the connection last made progress.
    int64_t taken_bytes_ = 0;  // The bytes acknowledged at that time; -1 before the first check.
  };

  // Borrows the clock.
  SendWatch(
      const Limits& limits, const Clock& clock,
      BytesTaken taken = [](const std::string&) { return std::nullopt; })
      : limits_(limits), clock_(clock), taken_(std::move(taken)) {}

  // Cancels each call whose peer has acknowledged nothing for the timeout, or whose answer should
  // have left by now. Returns how many calls it cancelled. A `timeout` shorter than that of the
  // limits replaces it, and then also limits the whole answer where acknowledged bytes are not
  // known.
  int EndSilent(absl::Duration timeout = absl::InfiniteDuration()) ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits& limits() const { return limits_; }

 private:
  void Begin(Call& call, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(Call& call) ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsSilent(Call& call, std::optional<int64_t> taken_bytes, int64_t patience_ns,
                int64_t now_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const Clock& clock_;
  const BytesTaken taken_;
  Mutex mutex_;
  absl::flat_hash_set<Call*> sending_ ABSL_GUARDED_BY(mutex_);
};

// Limits the memory that answers of the Registry hold until their readers have taken them. The
// limit is separate from Admission's, so that callers who ask much about the server take no room
// from products, and vice versa. Calls in progress need no limit of their own: their answers are
// prepared, so there are at most as many as gRPC has threads.
//
// The answers of one caller may hold half of the room, so that others find some; a single answer
// may hold more.
class UnreadAnswers {
  // By the name of the caller; only callers with answers.
  using Callers = std::map<std::string, int64_t, std::less<>>;

 public:
  // An answer of at most this many bytes is not counted and never refused: the call itself takes
  // more.
  static constexpr int64_t kUncountedBytes = 4096;

  // The room reserved for one answer, until this is destroyed. Null for an answer that is not
  // counted.
  using Room = std::shared_ptr<UnreadAnswers>;

  // Borrows the gate.
  UnreadAnswers(int64_t max_bytes, const Gate& gate) : max_bytes_(max_bytes), gate_(gate) {}

  // Reserves room for an answer to the call. Errors: ResourceExhausted, to be tried again, if all
  // answers together, or those of the call's caller, would hold too many bytes. Threads: any.
  // Outlives the rooms.
  absl::StatusOr<Room> Hold(int64_t bytes, grpc::CallbackServerContext& context)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Room> HoldFor(std::string_view caller, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<Callers::iterator> Take(std::string_view caller, int64_t bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(Callers::iterator caller, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t max_bytes_;
  const Gate& gate_;
  mutable Mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Callers callers_ ABSL_GUARDED_BY(mutex_);
};

// An answer, and how many of its bytes nothing else keeps.
struct RegistryAnswer {
  grpc::ByteBuffer bytes;
  int64_t own_bytes = 0;
};

// Serializes the message as an answer.
RegistryAnswer AnswerOf(const google::protobuf::MessageLite& message);

// The index of a method in the declaration of its service.
int MethodNumber(std::string_view service, std::string_view method);

// MethodRule::max_bytes of a method.
int64_t MaxRequestBytes(std::string_view service, std::string_view method);

// A unary call that is answered once, on any thread. Keeps the room of its answer until gRPC has
// released the answer, and owns itself until OnDone. The watch ends the call if its peer does not
// read the answer, even a short one: the call itself takes more memory than the answer.
class AnsweredCall : public grpc::ServerUnaryReactor {
 public:
  AnsweredCall(const HandlerTiming& timing, UnreadAnswers& unread, SendWatch& watch,
               grpc::CallbackServerContext& context, grpc::ByteBuffer& response)
      : timing_(timing),
        context_(context),
        unread_(unread),
        sending_(watch, context),
        response_(response) {}

  // Answers with what `answer` returns. `no_memory`: the refusal if memory runs out.
  void Answer(absl::FunctionRef<absl::StatusOr<RegistryAnswer>()> answer,
              std::string_view no_memory = "message: no memory for the answer, try again later");

  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    delete this;
  }

 protected:
  const HandlerTiming timing_;
  grpc::CallbackServerContext& context_;

 private:
  UnreadAnswers& unread_;
  SendWatch::Call sending_;
  grpc::ByteBuffer& response_;
  UnreadAnswers::Room room_;
};

// A call whose answers come from any thread and leave one after the other. `Base` is gRPC's
// reactor.
//
// The state changes under the lock. What follows from it (write, read, finish) is decided under the
// lock and done after its release, by one thread at a time. At most one read and one write are in
// progress. The call may finish during a read, which gRPC then ends.
template <typename Base>
class AnsweringReactor : public Base {
 public:
  void OnWriteDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    sending_.End();
    {
      MutexLock lock(&mutex_);
      is_writing_ = false;
      written_.room = nullptr;
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

 protected:
  struct Waiting {
    grpc::ByteBuffer bytes;
    UnreadAnswers::Room room = nullptr;
  };

  AnsweringReactor(const ServiceParts& parts, Handler handler, grpc::CallbackServerContext& context)
      : timing_{parts.times, parts.clock, handler}, sending_(parts.watch, context) {}

  // The next answer, if there is one.
  virtual std::optional<Waiting> TakeAnswer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Whether to start a read by Read now.
  virtual bool BeginRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return false; }
  virtual void Read() {}

  // Ends the call once all answers are written, unless it is ending already.
  void EndWith(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    if (!end_) end_ = ToGrpcStatus(status);
  }

  // Call this after each change of the state. The reactor must live until it returns.
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_) {
    steps_.Run(
        mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return NextStep(); },
        [this](const Step& step) {
          switch (step.kind) {
            case Step::Kind::kWrite:
              sending_.Begin(static_cast<int64_t>(written_.bytes.Length()));
              this->StartWrite(&written_.bytes);
              break;
            case Step::Kind::kRead: Read(); break;
            case Step::Kind::kFinish: this->Finish(step.end); break;
          }
        });
  }

  const HandlerTiming timing_;
  Mutex mutex_;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);

 private:
  // What is handed to gRPC.
  struct Step {
    enum class Kind : uint8_t { kWrite, kRead, kFinish };
    Kind kind = Kind::kWrite;
    grpc::Status end = {};
  };

  std::optional<Step> NextStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (is_broken_ && !end_) end_ = grpc::Status::CANCELLED;
    if (!is_writing_ && !is_broken_) {
      if (std::optional<Waiting> answer = TakeAnswer()) {
        written_ = *std::move(answer);
        is_writing_ = true;
        return Step{.kind = Step::Kind::kWrite};
      }
    }
    if (!end_ && BeginRead()) return Step{.kind = Step::Kind::kRead};
    if (!end_ || is_writing_ || std::exchange(is_finished_, true)) return std::nullopt;
    return Step{.kind = Step::Kind::kFinish, .end = *end_};
  }

  SendWatch::Call sending_;
  OneAtATime steps_;
  Waiting written_;  // The answer being written; changed only while none is.
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;  // The client has gone.
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
};

// A service whose unary methods are answered at once.
template <typename Base>
class AnsweredService : public Base {
 protected:
  using Context = grpc::CallbackServerContext;

  AnsweredService(const ServiceParts& parts, int64_t max_unread_bytes)
      : parts_(parts), unread_(max_unread_bytes, parts.gate) {}

  // Answers the method that `handler` names with what `make` returns for its request. The request
  // is read only if `check` returns OK.
  template <typename Service, typename Request, typename Check>
  void Add(std::string_view service, Handler handler, Check check,
           absl::StatusOr<RegistryAnswer> (Service::*make)(Context&, Request&)) {
    Add<std::remove_const_t<Request>>(service, NameOf(handler), handler, check,
                                      [this, make](Context& context, Request& wire) {
                                        return (static_cast<Service*>(this)->*make)(context, wire);
                                      });
  }

  // The same for a method whose time counts as the handler's.
  template <typename Request, typename Check, typename Make>
  void Add(std::string_view service, std::string_view method, Handler handler, Check check,
           Make make) {
    const int64_t max_bytes = MaxRequestBytes(service, method);
    AddRaw(MethodNumber(service, method), handler,
           [check, make, max_bytes](
               Context& context, const grpc::ByteBuffer& bytes) -> absl::StatusOr<RegistryAnswer> {
             RETURN_IF_ERROR(check(context));
             Request wire;
             RETURN_IF_ERROR(ReadRequest(bytes, wire, max_bytes));
             return make(context, wire);
           });
  }

  // The same with the bytes of a request. gRPC's typed methods would read a request of any length
  // before the service sees it, and would serialize every answer anew.
  template <typename Answer>
  void AddRaw(int method, Handler handler, Answer answer) {
    using Bytes = grpc::ByteBuffer;
    const auto call = [this, handler, answer](Context* context, const Bytes* request,
                                              Bytes* response) {
      const HandlerTiming timing{parts_.times, parts_.clock, handler};
      const HandlerTimer timer = timing.Begin();
      auto* const answered = new AnsweredCall(timing, unread_, parts_.watch, *context, *response);
      answered->Answer([&] { return answer(*context, TakeRequest(*request)); });
      return answered;
    };
    this->MarkMethodRawCallback(method,
                                new grpc::internal::CallbackUnaryHandler<Bytes, Bytes>(call));
  }

  const ServiceParts parts_;
  UnreadAnswers unread_;
};

// The bytes of one message as gRPC has them, moved in and out without a copy.
//
// If grpc::ByteBuffer itself were the message type, gRPC would keep it beside the one that it sends
// until the call ends, and so keep every slice.
struct WireBytes {
  WireBytes() = default;
  WireBytes(WireBytes&& other) noexcept { buffer.Swap(&other.buffer); }
  WireBytes& operator=(WireBytes&& other) noexcept {
    WireBytes taken(std::move(other));
    buffer.Swap(&taken.buffer);
    return *this;
  }

  // Mutable to take the bytes of a message that gRPC passes as const.
  mutable grpc::ByteBuffer buffer;
};

}  // namespace gemmd

namespace grpc {

template <>
class SerializationTraits<gemmd::WireBytes> {
 public:
  static Status Deserialize(ByteBuffer* from, gemmd::WireBytes* to) {
    to->buffer.Swap(from);
    return Status::OK;
  }
  static Status Serialize(const gemmd::WireBytes& from, ByteBuffer* to, bool* owns_buffer) {
    to->Swap(&from.buffer);
    *owns_buffer = true;
    return Status::OK;
  }
};

}  // namespace grpc
