// SPDX-License-Identifier: Apache-2.0
//
// What calls of all services share: how a status becomes gRPC's, the answer to a call that has one,
// and the bounds on answers whose peers do not read them.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
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
#include "server/wire/incoming.h"

namespace gemmd {

class Gate;
class ProductRunner;
class SendWatch;

// The parts of the server that its services share. Borrowed.
struct ServiceParts {
  ProductRunner& runner;
  const Gate& gate;
  ReceiveQuota& quota;
  SendWatch& watch;
  HandlerTimes& times;
  const Clock& clock;
};

// The one place where absl::Status becomes grpc::Status. The codes have the same numbers in both.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Tells the client, beside a refusal that says so, after how many milliseconds to try again. Call
// it before the call is finished.
void TellRetryAfter(const absl::Status& status, grpc::CallbackServerContext& context);

// Ends calls whose peer does not read its answers, so that what they hold is free again.
//
// gRPC tells nothing of a message that is on its way: neither how much of it has left, nor, before
// the end of the call, that its memory is no longer needed. So a peer has a time to begin and a
// rate at which it must read. Where the system tells what the peer of a connection has taken, a
// call ends sooner than by that: once nothing was taken for the time to begin.
class SendWatch {
 public:
  struct Limits {
    // Without progress, and beside the time that the bytes take.
    absl::Duration timeout = absl::Seconds(10);
    int64_t min_bytes_per_second = int64_t{8} << 20;  // At which they must be read.
  };

  // The bytes that a peer, as gRPC names it, has taken of its connection since that began; nothing
  // where the system does not tell. Bytes may rest in buffers of the peer's system.
  using BytesTaken = std::function<std::optional<int64_t>(const std::string& peer)>;

  // So little is taken by whoever answers pings and reads nothing.
  static constexpr int64_t kMinProgressBytes = int64_t{64} << 10;

  // What one call is sending. Watched from Begin to End.
  // Threads: one at a time.
  class Call {
   public:
    // Borrows both, which live until End: whoever holds a call that has ended may outlive them.
    Call(SendWatch& watch, grpc::CallbackServerContext& context)
        : watch_(watch), context_(context) {}
    virtual ~Call() { End(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // An answer of so many bytes is about to be handed to gRPC.
    void Begin(int64_t bytes) {
      is_sending_ = true;
      watch_.Begin(*this, bytes);
    }
    // It has left, or the call has ended.
    void End() {
      if (std::exchange(is_sending_, false)) watch_.End(*this);
    }

   protected:
    // For tests, whose contexts have no call.
    virtual std::string peer() const { return context_.peer(); }
    virtual void Cancel() { context_.TryCancel(); }

   private:
    friend class SendWatch;
    SendWatch& watch_;
    grpc::CallbackServerContext& context_;
    bool is_sending_ = false;
    // Guarded by the watch's lock:
    int64_t begun_ns_ = 0;
    int64_t due_ns_ = 0;       // When it should have left, had it begun at once.
    int64_t moved_ns_ = 0;     // When the connection's progress was last seen.
    int64_t taken_bytes_ = 0;  // As of then; -1 before the first look.
  };

  // Borrows the clock.
  SendWatch(
      const Limits& limits, const Clock& clock,
      BytesTaken taken = [](const std::string&) { return std::nullopt; })
      : limits_(limits), clock_(clock), taken_(std::move(taken)) {}

  // Cancels each call of whose answer nothing was taken for the time of the limits, or that should
  // have left, and returns how many those were. Where `timeout` is shorter it stands for that of
  // the limits, and where it is not known what is taken, no answer has longer.
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

// How much memory answers of the Registry hold until their readers have taken them. It is a bound
// apart from Admission's: who asks much about the server takes no room from products, and the other
// way round. Calls at work need no bound of their own: their answers are prepared, so there are as
// many as gRPC has threads.
class UnreadAnswers {
 public:
  // An answer of at most so many bytes is not counted and never refused: the call itself takes
  // more.
  static constexpr int64_t kUncountedBytes = 4096;

  // The room of one answer, given back by the destructor. Movable. Threads: one at a time.
  class Room {
   public:
    Room() = default;
    Room(Room&& other) noexcept;
    Room& operator=(Room&& other) noexcept;
    ~Room();

   private:
    friend class UnreadAnswers;
    Room(UnreadAnswers* answers, int64_t bytes) : answers_(answers), bytes_(bytes) {}

    UnreadAnswers* answers_ = nullptr;
    int64_t bytes_ = 0;
  };

  explicit UnreadAnswers(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Errors: ResourceExhausted, to be tried again, where all answers would hold too many bytes.
  // Threads: any. Outlives the rooms.
  absl::StatusOr<Room> Hold(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void GiveBack(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t max_bytes_;
  mutable Mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// An answer, and how many of its bytes nobody else keeps.
struct RegistryAnswer {
  grpc::ByteBuffer bytes;
  int64_t own_bytes = 0;
};

// The answer that a message is.
RegistryAnswer AnswerOf(const google::protobuf::MessageLite& message);

// The place of a method in the declaration of its service.
int MethodNumber(std::string_view service, std::string_view method);

// Answers a call, of the Registry for example, with what `answer` gives: bytes come in, bytes go
// out. gRPC's typed methods would read a request of any length before the service sees it, and
// write every answer anew. The reactor owns itself. The watch ends the call where nobody reads the
// answer: a short one takes little, but its call takes more.
grpc::ServerUnaryReactor* AnswerRegistryCall(
    const HandlerTiming& timing, grpc::CallbackServerContext& context, UnreadAnswers& unread,
    SendWatch& watch, absl::FunctionRef<absl::StatusOr<RegistryAnswer>()> answer,
    grpc::ByteBuffer& response);

// A service with methods that are answered at once, one message by another.
template <typename Base>
class AnsweredService : public Base {
 protected:
  using Context = grpc::CallbackServerContext;

  AnsweredService(const ServiceParts& parts, int64_t max_unread_bytes)
      : parts_(parts), unread_(max_unread_bytes) {}

  // Answers the method of the handler's name with what `make` gives for its request, which is
  // looked at if `check` says OK.
  template <typename Service, typename Request, typename Check>
  void Add(std::string_view service, Handler handler, Check check,
           absl::StatusOr<RegistryAnswer> (Service::*make)(Context&, Request&)) {
    using Bytes = grpc::ByteBuffer;
    const auto answer = [this, handler, check, make](Context* context, const Bytes* request,
                                                     Bytes* response) {
      const HandlerTiming timing{parts_.times, parts_.clock, handler};
      const HandlerTimer timer = timing.Begin();
      const Bytes bytes = TakeRequest(*request);
      const auto answer_to = [&]() -> absl::StatusOr<RegistryAnswer> {
        RETURN_IF_ERROR(check(*context));
        std::remove_const_t<Request> wire;
        RETURN_IF_ERROR(ReadRequest(bytes, wire));
        return (static_cast<Service*>(this)->*make)(*context, wire);
      };
      return AnswerRegistryCall(timing, *context, unread_, parts_.watch, answer_to, *response);
    };
    this->MarkMethodRawCallback(MethodNumber(service, NameOf(handler)),
                                new grpc::internal::CallbackUnaryHandler<Bytes, Bytes>(answer));
  }

  const ServiceParts parts_;
  UnreadAnswers unread_;
};

// The bytes of one message as gRPC has them, taken over and handed over without a copy.
//
// grpc::ByteBuffer as the type of a message would stay beside the one that gRPC sends until the
// call ends, and so keep every slice.
struct WireBytes {
  // Taken from a message that gRPC gives as constant.
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
