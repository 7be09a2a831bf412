// SPDX-License-Identifier: Apache-2.0
//
// One product of a peer, from the bytes of its request to the bytes of its answer, for unary calls
// and streams alike.
//
// Admission counts all the memory that it keeps: the bytes of the request from their arrival, what
// is made of them, and the result until the answer has left. A refused product keeps nothing.
#pragma once

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/v1/gemm.pb.h"
#include "kernels/matrix/status.h"
#include "server/metrics/handler_times.h"
#include "server/product/product_runner.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"
#include "server/system/recycled.h"
#include "server/system/threads.h"
#include "server/wire/calls.h"
#include "server/wire/gate.h"
#include "server/wire/incoming.h"
#include "server/wire/outgoing.h"

namespace gemmd {

// The maximum number of unanswered products on one stream. At the maximum, the server stops
// reading.
inline constexpr int kMaxStreamRequests = 1024;

// The number of products of a stream that are queued together. While the device works on them,
// parsing continues.
inline constexpr size_t kStartedTogether = 64;

// The maximum time for which a stream occupies one of gRPC's threads without a break.
inline constexpr int64_t kMaxAtOnceNs = 2'000'000;

// A request as it arrived, in either protocol.
class ArrivedRequest {
 public:
  virtual ~ArrivedRequest() = default;

  // The peak number of bytes that Parse needs beside an empty message, wire bytes included. Errors:
  // InvalidArgument; ResourceExhausted if there is no memory.
  virtual absl::StatusOr<int64_t> Examine(v1::MultiplyRequest& message) = 0;

  // Fills the message that was examined. Its long fields stay in `held`, which borrows the quota.
  // Puts into `arrival` what the request says about itself.
  virtual absl::Status Parse(v1::MultiplyRequest& message, ReceiveQuota& quota, HeldFields& held,
                             Arrival& arrival) = 0;

  // The id of a request that Examine or Parse refused; empty if it is not valid text.
  virtual std::string UnparsedId() = 0;
};

// The text field with this number, up to the maximum length of an id; empty if it is not valid
// text.
std::string UnparsedId(Incoming& request, int number);

// A product together with the request whose operands it borrows. One allocation holds both, and the
// answer is made in it.
struct RequestedProduct final : Product, Recycled<RequestedProduct> {
  // Parses the request and starts its product, whose id, arrival and `answer` are set; or adds the
  // product to `company` if that is not null (ProductRunner::StartTogether). Borrows runner and
  // quota. If this returns OK, `answer` is called exactly once, perhaps before this returns.
  // Errors: as Gemm.Multiply of the wire contract; the caller then keeps the product, in the state
  // after Refuse, and `answer` is never called.
  static absl::Status Start(ProductRunner& runner, ReceiveQuota& quota, ArrivedRequest& request,
                            std::unique_ptr<RequestedProduct>& product, Company* company = nullptr);

  // Takes the request away at the end of the product: long operands take a while to be freed, so
  // the caller should free them after it has sent the answer.
  HeldFields ReleaseRequest();

  // The bytes of the answer, and what gRPC adds to them, once the product is OK.
  int64_t answer_bytes() const {
    return static_cast<int64_t>(outcome.d.size()) + kAnswerOverheadBytes;
  }
  // The product is OK and waits to be answered: its place among the queued requests is free, and
  // from now on only the bytes of the answer are counted.
  void LeaveQueue() { ticket.MarkAnswered(answer_bytes()); }
  // The product has ended without an answer, and keeps nothing but its id.
  void Refuse();

 private:
  absl::Status Parse(ProductRunner& runner, ReceiveQuota& quota, ArrivedRequest& request);

  // Without the bytes that are held apart from it. Absent after ReleaseRequest.
  std::optional<MessageOn<v1::MultiplyRequest, 1024>> message_ =
      std::make_optional<MessageOn<v1::MultiplyRequest, 1024>>();
  HeldFields held_;
};

// Converts what the `answer` callback of a RequestedProduct gets.
std::unique_ptr<RequestedProduct> TakeEnded(std::unique_ptr<Product> ended);

// One product of a peer in a unary call or in another protocol: starts it, and gives it back to its
// caller when it has ended.
class ProductExchange {
 public:
  using Answer = absl::AnyInvocable<void(const absl::Status&) &&>;

  // Like RequestedProduct::Start, with the arrival of the request, and the id by which the product
  // can be cancelled. The exchange lives until `answer` is called.
  absl::Status Start(const ServiceParts& parts, JobId id, ArrivedRequest& request, Arrival arrival,
                     Answer answer, Company* company = nullptr);

  // The id of the request, as far as it could be read; empty before Start.
  std::string request_id() const {
    return product_ == nullptr ? std::string() : product_->arrival.request_id;
  }

  // For a product that is OK. The answer is taken once, after LeaveQueue.
  int64_t answer_bytes() const { return product_->answer_bytes(); }
  void LeaveQueue() { product_->LeaveQueue(); }
  grpc::ByteBuffer TakeUnaryAnswer();
  // The parts of the answer, for another protocol: the response lacks the bytes of D.
  v1::MultiplyResponse TakeResponse();
  HeldBytes TakeD() { return std::move(product_->outcome.d); }
  const RequestedProduct& product() const { return *product_; }

 private:
  void End(std::unique_ptr<RequestedProduct> ended);

  Answer answer_;
  std::unique_ptr<RequestedProduct> product_;  // Null until the product has ended.
};

// A request in gemmd's own protocol.
class MultiplyMessage final : public ArrivedRequest {
 public:
  explicit MultiplyMessage(Incoming incoming) : incoming_(std::move(incoming)) {}

  absl::StatusOr<int64_t> Examine(v1::MultiplyRequest& message) override {
    return incoming_.Examine(message);
  }
  absl::Status Parse(v1::MultiplyRequest& message, ReceiveQuota& quota, HeldFields& held,
                     Arrival& /*arrival*/) override {
    is_parsed_ = true;
    return incoming_.Parse(message, quota, held);
  }
  std::string UnparsedId() override {
    // Parsing has freed the bytes.
    if (is_parsed_) return "";
    return gemmd::UnparsedId(incoming_, v1::MultiplyRequest::kRequestIdFieldNumber);
  }

 private:
  Incoming incoming_;
  bool is_parsed_ = false;
};

// The span of a call whose metadata have exactly one valid `traceparent`. Adds the span to the
// trailing metadata of the answer, so call it once, before anything can end the call.
std::optional<TraceSpan> StartSpan(grpc::CallbackServerContext& context);

// Finds the session of the arrival's token, or of a known caller without a token. If there is none,
// each product that needs a session is refused with the reason.
void FindSession(TensorStore& store, Arrival& arrival);

// What the context of a call says about all its messages: the deadline, the peer, the connection
// and the session's token. `method` must be a literal: "Multiply".
Arrival OriginOf(grpc::CallbackServerContext& context, std::string_view method, const Gate& gate,
                 const Clock& clock);

// The arrival of a message of the call: adds the current caller, and the session of the token.
// Errors: as Gate::CallerOf.
absl::StatusOr<Arrival> ArrivalOf(grpc::CallbackServerContext& context, Arrival origin,
                                  int64_t arrived_ns, const Gate& gate, TensorStore& store);

// A unary call for one product, in either protocol.
//
// Owns itself until OnDone, which gRPC calls after Finish and after any OnCancel.
template <typename Exchange>
class UnaryProduct final : public grpc::ServerUnaryReactor {
 public:
  using Begin = absl::FunctionRef<absl::Status(Exchange& exchange, JobId id, Arrival arrival,
                                               ProductExchange::Answer answer)>;

  template <typename... Arguments>
  UnaryProduct(const ServiceParts& parts, Handler handler, grpc::CallbackServerContext& context,
               WireBytes& response, Arguments&&... arguments)
      : timing_{parts.times, parts.clock, handler},
        runner_(parts.runner),
        context_(context),
        response_(response),
        exchange_(std::forward<Arguments>(arguments)...),
        sending_(parts.watch, context) {}

  // `begin` starts the exchange. If `arrival` is an error, the call is refused instead.
  void Start(absl::StatusOr<Arrival> arrival, Begin begin) {
    std::optional<TraceSpan> span = StartSpan(context_);
    if (!arrival.ok()) return Finish(ToGrpcStatus(arrival.status()));
    arrival->span = std::move(span);
    job_id_ = runner_.NewId();
    const absl::Status status = begin(exchange_, job_id_, *std::move(arrival),
                                      [this](const absl::Status& end) { Answer(end); });
    if (!status.ok()) Answer(status);
  }

  // Called only after Start has returned, because gRPC does not know the reactor before.
  void OnCancel() override {
    const HandlerTimer timer = timing_.Begin();
    runner_.Cancel(job_id_);
  }
  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    delete this;
  }

 private:
  void Answer(const absl::Status& status) {
    TellRetryAfter(status, context_);
    if (status.ok()) {
      exchange_.LeaveQueue();
      sending_.Begin(exchange_.answer_bytes());
      grpc::ByteBuffer answer = exchange_.TakeUnaryAnswer();
      response_.buffer.Swap(&answer);  // Assignment would copy the list of slices.
    }
    Finish(ToGrpcStatus(status));
  }

  const HandlerTiming timing_;
  ProductRunner& runner_;
  grpc::CallbackServerContext& context_;
  WireBytes& response_;
  Exchange exchange_;
  SendWatch::Call sending_;
  JobId job_id_ = 0;  // No job has the id 0.
};

// The handler of a method that is a UnaryProduct. `begin` starts an exchange with the bytes of a
// request, and with the arguments of UnaryProduct::Begin. Borrows the parts and the arguments of
// the exchange.
template <typename Exchange, typename Begin, typename... Arguments>
auto* UnaryHandler(const ServiceParts& parts, Handler handler, Begin begin,
                   const Arguments&... arguments) {
  return new grpc::internal::CallbackUnaryHandler<WireBytes, WireBytes>(
      [&parts, handler, begin, &arguments...](grpc::CallbackServerContext* context,
                                              const WireBytes* request, WireBytes* response) {
        // gRPC calls this as soon as the last byte has arrived.
        const int64_t arrived_ns = parts.clock.NowNs();
        const HandlerTimer timer(parts.times, parts.clock, handler, arrived_ns);
        auto* const call =
            new UnaryProduct<Exchange>(parts, handler, *context, *response, arguments...);
        call->Start(
            ArrivalOf(*context, OriginOf(*context, NameOf(handler), parts.gate, parts.clock),
                      arrived_ns, parts.gate, parts.runner.tensors()),
            [&](Exchange& exchange, JobId id, Arrival arrival, ProductExchange::Answer answer) {
              return begin(exchange, id, request->buffer, std::move(arrival), std::move(answer));
            });
        return call;
      });
}

// A call with a stream of products, in either protocol. Products are answered as they finish.
// `Message` is a message that was read; its size() is the number of its products that are not
// started. `Ended` is what is kept of a finished product until its answer has left; its bytes() are
// those of the answer, and its refusal_bytes() what a refusal keeps, which nothing else counts.
//
// The state changes under the lock. What follows from it (read, write, finish) is decided under the
// lock and done after its release. At most one read and one write are in progress, and the stream
// is finished only when no read, no write and no product is in progress.
//
// Messages are read while the products of earlier ones are started, by one thread at a time and in
// order. What arrives meanwhile is started together, like the products of one message.
//
// gRPC holds the reactor until OnDone, and so does the callback of every product in progress.
template <typename Message, typename Ended>
class ProductStream : public grpc::ServerBidiReactor<WireBytes, WireBytes>,
                      public std::enable_shared_from_this<ProductStream<Message, Ended>>,
                      public Deferred {
 public:
  // Starts reading. The reactor owns itself until OnDone.
  void Start() {
    const HandlerTimer timer = timing_.Begin();
    self_ = this->shared_from_this();
    Advance();
  }

  void OnReadDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    bool shall_start = false;
    Step next;
    const size_t bytes = ok ? incoming_.buffer.Length() : 0;
    absl::StatusOr<Message> message =
        ok ? ReadMessage(incoming_.buffer, parts_.clock.NowNs()) : absl::CancelledError();
    {
      MutexLock lock(&mutex_);
      is_reading_ = false;
      if (!ok || !message.ok()) reads_ended_ = true;
      if (message.ok() && !broken_) {
        unstarted_ += message->size();
        arrived_bytes_ += bytes;
        arrived_.push_back(*std::move(message));
        shall_start = !std::exchange(is_starting_, true);
      } else if (ok && !message.ok()) {
        refused_ = std::move(message).status();
      }
      Decide(next);
    }
    Do(std::move(next));
    if (shall_start) StartArrived();
  }

  void OnWriteDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    sending_.End();
    DropWritten(ok);
    Advance();
  }

  void OnCancel() override {
    const HandlerTimer timer = timing_.Begin();
    Break(absl::OkStatus());
  }

  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    self_.reset();
  }

  void RunDeferred() override { Advance(); }

 protected:
  // A message holds at most `max_joint` answers.
  ProductStream(const ServiceParts& parts, Handler handler, size_t max_joint,
                grpc::CallbackServerContext& context)
      : parts_(parts),
        timing_{parts.times, parts.clock, handler},
        context_(context),
        span_(StartSpan(context)),
        origin_(OriginOf(context, NameOf(handler), parts.gate, parts.clock)),
        max_joint_(max_joint),
        sending_(parts.watch, context) {}

  // Takes a message out of its bytes. An error ends the stream, after the answers of what was asked
  // before.
  virtual absl::StatusOr<Message> ReadMessage(grpc::ByteBuffer& bytes, int64_t arrived_ns) = 0;
  // Starts the next product of the message, with an id from Enter.
  virtual void StartProduct(Message& message, Company& company) = 0;
  // The message of these answers. They are kept until the message has left.
  virtual grpc::ByteBuffer MessageOf(std::vector<Ended>& answers) = 0;

  JobId Enter() {
    const JobId id = parts_.runner.NewId();
    MutexLock lock(&mutex_);
    running_.insert(id);
    return id;
  }

  // The product has ended or was refused. Products that end together leave in one message: gRPC
  // takes as long for one short message as for all of them.
  void Answer(JobId id, Ended ended) {
    const bool is_put_off = Deferral::PutOff(this->shared_from_this());
    Step next;
    {
      MutexLock lock(&mutex_);
      running_.erase(id);
      refusal_bytes_ += ended.refusal_bytes();
      answers_.push_back(std::move(ended));
      if (!is_put_off || answers_.size() >= kSentTogether) Decide(next);
    }
    Do(std::move(next));
  }

  absl::StatusOr<Arrival> ArrivalOfMessage(int64_t arrived_ns) {
    return ArrivalOf(context_, origin_, arrived_ns, parts_.gate, parts_.runner.tensors());
  }
  std::optional<TraceSpan> SpanOfProduct() const {
    return span_ ? std::optional<TraceSpan>(ChildOf(*span_)) : std::nullopt;
  }

  const ServiceParts parts_;
  const HandlerTiming timing_;

 private:
  // The maximum number of answers that wait to be written, and of products to be started, which may
  // be refused at once. A client that does not read its answers gets no more.
  static constexpr size_t kMaxWaitingAnswers = 256;
  // Once this many answers wait, they are sent without waiting for products that end with them, so
  // that their callers can continue.
  static constexpr size_t kSentTogether = 16;
  // Once so many messages, or so many bytes of them, wait for their products to be started, no
  // more are read.
  static constexpr size_t kMaxArrived = 64;
  static constexpr size_t kMaxArrivedBytes = size_t{16} << 10;
  // Once refusals of so many bytes wait to be read by the client, no product is started: refusing
  // products that have no operands costs their sender less than keeping the refusals.
  static constexpr int64_t kMaxRefusalBytes = int64_t{4} << 10;

  // What must be done after a change of the state.
  struct Step {
    bool shall_read = false;
    bool shall_write = false;
    bool shall_finish = false;
    bool shall_start = false;
    std::vector<Ended> unwanted;  // Freed after the lock is released.
    grpc::Status status;
  };

  // Starts the products that have arrived. After kMaxAtOnceNs, what has been read is finished, and
  // reading continues only then, so that other work waiting for this thread has its turn.
  void StartArrived() {
    const Deferral deferral;  // Sends the answers of refused products together.
    const int64_t until_ns = parts_.clock.NowNs() + kMaxAtOnceNs;
    current_until_ns_ = until_ns;
    while (StartSome()) {
      const int64_t now_ns = parts_.clock.NowNs();
      if (now_ns >= until_ns) {
        MutexLock lock(&mutex_);
        is_paused_ = true;
      }
      if (!current_ || now_ns < current_until_ns_) continue;
      // The rest of a long message is started on another thread. The alarm keeps its callback, so
      // the callback must not own the reactor. The stream does not end before all products that
      // have arrived are started.
      alarm_.Set(gpr_now(GPR_CLOCK_MONOTONIC), [this](bool /*ok*/) {
        const auto self = this->shared_from_this();
        const HandlerTimer timer = timing_.Begin();
        StartArrived();
      });
      return;
    }
  }

  // Starts up to kStartedTogether products. Returns whether to start more: not if there are none,
  // or if they wait for refusals to leave. Decide then has them started.
  bool StartSome() {
    {
      MutexLock lock(&mutex_);
      is_waiting_ = MustWait();
      if (is_waiting_) return false;
    }
    Company company;
    size_t started = 0;
    while (started < kStartedTogether && TakeMessage()) {
      if (current_->size() > 1) {
        company.reserve(std::min(company.size() + current_->size(), kStartedTogether));
      }
      StartProduct(*current_, company);
      ++started;
      if (parts_.clock.NowNs() >= current_until_ns_) break;
    }
    parts_.runner.StartTogether(std::move(company));
    {
      MutexLock lock(&mutex_);
      unstarted_ -= started;
    }
    CancelIfBroken();
    if (TakeMessage()) return true;
    Step next;
    {
      MutexLock lock(&mutex_);
      if (!arrived_.empty()) return true;
      is_starting_ = is_paused_ = false;
      Decide(next);
    }
    Do(std::move(next));
    return false;
  }

  // Makes the next message that has products the current one; returns false if there is none.
  bool TakeMessage() {
    while (!current_ || current_->size() == 0) {
      current_.reset();
      if (next_taken_ == taken_.size()) TakeArrived();
      if (next_taken_ == taken_.size()) return false;
      current_.emplace(std::move(taken_[next_taken_++]));
      current_until_ns_ = parts_.clock.NowNs() + kMaxAtOnceNs;
    }
    return true;
  }

  // Takes all messages that have arrived; drops them if the stream is broken.
  void TakeArrived() {
    taken_.clear();
    next_taken_ = 0;
    bool is_broken = false;
    {
      MutexLock lock(&mutex_);
      taken_.swap(arrived_);
      arrived_bytes_ = 0;
      is_broken = broken_;
      if (is_broken) {
        for (const Message& message : taken_) unstarted_ -= message.size();
      }
    }
    if (is_broken) taken_.clear();
  }

  // OnCancel may have come before some products were queued.
  void CancelIfBroken() {
    std::vector<JobId> jobs;
    {
      MutexLock lock(&mutex_);
      if (broken_) jobs.assign(running_.begin(), running_.end());
    }
    if (!jobs.empty()) parts_.runner.Cancel(jobs);
  }

  // Stops reading and answering. `reason` is OK if the client has gone.
  void Break(absl::Status reason) {
    {
      MutexLock lock(&mutex_);
      broken_ = true;
      refused_.Update(std::move(reason));
    }
    CancelIfBroken();
    Advance();
  }

  // Forgets the answers that were being written.
  void DropWritten(bool is_ok) {
    written_.clear();
    MutexLock lock(&mutex_);
    refusal_bytes_ -= std::exchange(written_refusal_bytes_, 0);
    being_written_ = 0;
    if (!is_ok) broken_ = true;
  }

  bool MustWait() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return refusal_bytes_ >= kMaxRefusalBytes && !broken_;
  }

  size_t UnansweredRequests() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return unstarted_ + running_.size() + answers_.size() + being_written_;
  }

  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !is_reading_ && !is_paused_ && !is_waiting_ && !reads_ended_ && !broken_ &&
           arrived_.size() < kMaxArrived && arrived_bytes_ < kMaxArrivedBytes &&
           UnansweredRequests() < kMaxStreamRequests &&
           answers_.size() + unstarted_ < kMaxWaitingAnswers;
  }

  // Takes as many answers as one message holds. Nothing is being written.
  void TakeAnswers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int64_t bytes = 0;
    auto end = answers_.begin();
    for (; end != answers_.end() && written_.size() < max_joint_; ++end) {
      bytes += end->bytes();
      if (!written_.empty() && bytes > kMaxJointAnswerBytes) break;
      written_refusal_bytes_ += end->refusal_bytes();
      written_.push_back(std::move(*end));
    }
    answers_.erase(answers_.begin(), end);
    being_written_ = written_.size();
  }

  void Decide(Step& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (broken_) {
      for (const Ended& ended : answers_) refusal_bytes_ -= ended.refusal_bytes();
      std::move(answers_.begin(), answers_.end(), std::back_inserter(next.unwanted));
      answers_.clear();
    }
    if (is_waiting_ && !MustWait()) {
      is_waiting_ = false;
      next.shall_start = true;
    }
    if (being_written_ == 0 && !answers_.empty()) {
      TakeAnswers();
      next.shall_write = true;
    }
    if (MayRead()) next.shall_read = is_reading_ = true;
    if (!is_reading_ && !is_starting_ && UnansweredRequests() == 0 && !finished_) {
      next.shall_finish = finished_ = true;
      next.status = broken_ && refused_.ok() ? grpc::Status::CANCELLED : ToGrpcStatus(refused_);
    }
  }

  void Do(Step next) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (next.shall_write) Write();
    if (next.shall_read) StartRead(&incoming_);
    if (next.shall_finish) Finish(next.status);
    if (next.shall_start) StartArrived();
  }

  // The bytes of the answers are counted until they have left.
  void Write() {
    const absl::Status status = OrNoMemory("message: no memory for the answers", [&] {
      grpc::ByteBuffer message = MessageOf(written_);
      answer_.buffer.Swap(&message);  // Assignment would copy the list of slices.
      return absl::OkStatus();
    });
    if (!status.ok()) {
      DropWritten(/*is_ok=*/false);
      return Break(status);
    }
    sending_.Begin(static_cast<int64_t>(answer_.buffer.Length()));
    StartWrite(&answer_);
  }

  void Advance() ABSL_LOCKS_EXCLUDED(mutex_) {
    Step next;
    {
      MutexLock lock(&mutex_);
      Decide(next);
    }
    Do(std::move(next));
  }

  grpc::CallbackServerContext& context_;
  const std::optional<TraceSpan> span_;  // The span of the stream; products' spans are its
                                         // children.
  const Arrival origin_;
  const size_t max_joint_;
  SendWatch::Call sending_;
  std::shared_ptr<ProductStream> self_;

  WireBytes incoming_;  // The message being read. Used only by its reader, and to begin a read.

  // Messages whose products are being started. Used only by the thread that starts products.
  std::vector<Message> taken_;
  size_t next_taken_ = 0;
  std::optional<Message> current_;
  int64_t current_until_ns_ = 0;
  grpc::Alarm alarm_;

  // The message being written, and its answers. Used only by the writer, and to begin a write.
  WireBytes answer_;
  std::vector<Ended> written_;

  Mutex mutex_;
  absl::flat_hash_set<JobId> running_ ABSL_GUARDED_BY(mutex_);
  std::vector<Ended> answers_ ABSL_GUARDED_BY(mutex_);  // To be written.
  size_t being_written_ ABSL_GUARDED_BY(mutex_) = 0;    // The number of answers being written.
  int64_t refusal_bytes_ ABSL_GUARDED_BY(mutex_) = 0;   // Of all of these,
  int64_t written_refusal_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // and of those being written.
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  // Messages whose products are to be started, by the thread that set is_starting_.
  std::vector<Message> arrived_ ABSL_GUARDED_BY(mutex_);
  size_t arrived_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_starting_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_paused_ ABSL_GUARDED_BY(mutex_) = false;    // Nothing is read until all are started.
  bool is_waiting_ ABSL_GUARDED_BY(mutex_) = false;   // No thread starts them: see MustWait.
  size_t unstarted_ ABSL_GUARDED_BY(mutex_) = 0;      // Products of messages that were read.
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;  // Closed by the client, or refused.
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;       // Cancelled, or a write failed.
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);  // Why the stream ends; OK while it may continue.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

// The handler of a method that is a ProductStream. Borrows what the stream is made from.
template <typename Stream, typename Setting>
auto* StreamHandler(const Setting& setting) {
  return new grpc::internal::CallbackBidiHandler<WireBytes, WireBytes>(
      [&setting](grpc::CallbackServerContext* context) {
        const auto stream = std::make_shared<Stream>(setting, *context);
        stream->Start();
        return stream.get();
      });
}

}  // namespace gemmd
