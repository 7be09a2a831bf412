// SPDX-License-Identifier: Apache-2.0
//
// One product of a peer, from the bytes of its request to the bytes of its answer: the same for
// unary calls and streams.
//
// All that it keeps is in the account of admission: the request's bytes from their arrival, what is
// made of them, and the result until the answer has left. A refused product keeps nothing.
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstddef>
#include <deque>
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
#include "server/system/threads.h"
#include "server/wire/calls.h"
#include "server/wire/gate.h"
#include "server/wire/incoming.h"
#include "server/wire/outgoing.h"

namespace gemmd {

// Unanswered products on one stream before the server stops reading.
inline constexpr int kMaxStreamRequests = 1024;

// A request as it has arrived, in the words of one protocol or another.
class ArrivedRequest {
 public:
  virtual ~ArrivedRequest() = default;

  // The most bytes that Parse takes at any time beside an empty message, wire bytes included.
  // Errors: InvalidArgument, ResourceExhausted where there is no memory.
  virtual absl::StatusOr<int64_t> Examine(v1::MultiplyRequest& message) = 0;

  // Fills the message that was examined; its long fields stay with `held`, which borrows the quota.
  // What the request says of itself is told to `arrival`.
  virtual absl::Status Parse(v1::MultiplyRequest& message, ReceiveQuota& quota, HeldFields& held,
                             Arrival& arrival) = 0;

  // The id of a request that is refused by one of these; empty where it is no text.
  virtual std::string UnparsedId() = 0;
};

// The text of the field of that number, as far as an id may be long; empty where it is no text.
std::string UnparsedId(Incoming& request, int number);

// A product with the request that it borrows its operands of; one allocation holds both, and the
// answer is made of it.
struct RequestedProduct final : Product {
  // Parses the request and starts its product, whose id, arrival and `answer` are set, or adds it
  // to a company that is not null (ProductRunner::StartTogether). Borrows runner and quota. If this
  // returns OK, the product is taken, and `answer` is called exactly once, perhaps before this
  // returns. Errors: as Gemm.Multiply of the wire contract; the caller then keeps the product, as
  // Refuse leaves it, and `answer` is never called.
  static absl::Status Start(ProductRunner& runner, ReceiveQuota& quota, ArrivedRequest& request,
                            std::unique_ptr<RequestedProduct>& product, Company* company = nullptr);

  // Forgets the request at the end of the product: long operands take a while to be freed, and
  // should be freed after the answer is on its way.
  HeldFields ReleaseRequest();

  // The bytes of the answer and what gRPC adds, once the product is OK.
  int64_t answer_bytes() const {
    return static_cast<int64_t>(outcome.d.size()) + kAnswerOverheadBytes;
  }
  // The product is OK and waits to be answered: its place among the requests is free, and its bytes
  // are those of the answer.
  void LeaveQueue() { ticket.MarkAnswered(answer_bytes()); }
  // It has ended without an answer, and keeps nothing but its id.
  void Refuse();

 private:
  absl::Status Parse(ProductRunner& runner, ReceiveQuota& quota, ArrivedRequest& request);

  // Without the bytes that are held apart from it. Absent once it is released.
  std::optional<MessageOn<v1::MultiplyRequest, 1024>> message_ =
      std::make_optional<MessageOn<v1::MultiplyRequest, 1024>>();
  HeldFields held_;
};

// What the `answer` of a RequestedProduct is given.
std::unique_ptr<RequestedProduct> TakeEnded(std::unique_ptr<Product> ended);

// One product of a peer in a unary call or in the words of another protocol: it is started, and
// given back to its caller when it has ended.
class ProductExchange {
 public:
  using Answer = absl::AnyInvocable<void(const absl::Status&) &&>;

  // As RequestedProduct::Start, with what the request arrived with and the number by which the
  // product can be cancelled. The exchange lives until `answer` is called.
  absl::Status Start(const ServiceParts& parts, JobId id, ArrivedRequest& request, Arrival arrival,
                     Answer answer);

  // The id of the request, as far as it could be read; empty before it was started.
  std::string request_id() const {
    return product_ == nullptr ? std::string() : product_->arrival.request_id;
  }

  // The product is OK. Its answer is taken once, after it has left the queue.
  int64_t answer_bytes() const { return product_->answer_bytes(); }
  void LeaveQueue() { product_->LeaveQueue(); }
  grpc::ByteBuffer TakeUnaryAnswer();
  // Its parts, for another protocol: the answer lacks the bytes of D.
  v1::MultiplyResponse TakeResponse();
  HeldBytes TakeD() { return std::move(product_->outcome.d); }
  const RequestedProduct& product() const { return *product_; }

 private:
  void End(std::unique_ptr<RequestedProduct> ended);

  Answer answer_;
  std::unique_ptr<RequestedProduct> product_;  // Null until it has ended.
};

// A request of gemmd's own.
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
    // Parsing frees the bytes.
    if (is_parsed_) return "";
    return gemmd::UnparsedId(incoming_, v1::MultiplyRequest::kRequestIdFieldNumber);
  }

 private:
  Incoming incoming_;
  bool is_parsed_ = false;
};

// The span of a call whose metadata have one valid `traceparent`. Adds the span to the trailing
// metadata of the answer: call it once, before anything can end the call.
std::optional<TraceSpan> StartSpan(grpc::CallbackServerContext& context);

// Finds the session of the arrival's token, or of a known caller without one. If there is none,
// each product that needs it is told so.
void FindSession(TensorStore& store, Arrival& arrival);

// What a call's context says of all that it brings: its deadline, its peer, its connection and the
// token of its session. The method's name is a literal: "Multiply".
Arrival OriginOf(grpc::CallbackServerContext& context, std::string_view method, const Gate& gate,
                 const Clock& clock);

// A message of the call has arrived: adds who the caller is by now, and the session of its token.
// Errors: as Gate::CallerOf.
absl::StatusOr<Arrival> ArrivalOf(grpc::CallbackServerContext& context, Arrival origin,
                                  int64_t arrived_ns, const Gate& gate, TensorStore& store);

// A unary call for one product, in the messages of either protocol.
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

  // `begin` starts the exchange; where the call may not be made it is refused instead.
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
      response_.buffer.Swap(&answer);  // To assign it would copy the list of its slices.
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

// A call with a stream of products, in the messages of either protocol, answered as they finish.
// `Ended` is what is kept of a product that has ended until its answer has left; its bytes() are
// those of the answer.
//
// The state changes under the lock; what follows from it (read, write, finish) is decided there and
// done afterwards. At most one read and one write are under way, and the stream is finished only
// when no read, no write and no product is under way.
//
// gRPC holds the reactor until OnDone, and so does the callback of every product under way.
template <typename Ended>
class ProductStream : public grpc::ServerBidiReactor<WireBytes, WireBytes>,
                      public std::enable_shared_from_this<ProductStream<Ended>>,
                      public Deferred {
 public:
  // Starts reading. The reactor owns itself until gRPC is done with it.
  void Start() {
    const HandlerTimer timer = timing_.Begin();
    self_ = this->shared_from_this();
    Advance();
  }

  void OnReadDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    bool is_wanted = false;
    {
      MutexLock lock(&mutex_);
      is_wanted = ok && !broken_;
      if (!ok) reads_ended_ = true;
    }
    is_wanted ? StartProducts() : EndReading();
  }

  void OnWriteDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    sending_.End();
    written_.clear();
    {
      MutexLock lock(&mutex_);
      being_written_ = 0;
      if (!ok) broken_ = true;
    }
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
  // At most so many answers are in one message.
  ProductStream(const ServiceParts& parts, Handler handler, size_t max_joint,
                grpc::CallbackServerContext& context)
      : parts_(parts),
        timing_{parts.times, parts.clock, handler},
        context_(context),
        span_(StartSpan(context)),
        origin_(OriginOf(context, NameOf(handler), parts.gate, parts.clock)),
        max_joint_(max_joint),
        sending_(parts.watch, context) {}

  // Starts the products of the message that was read, each with a number that Enter gave, and calls
  // EndReading.
  virtual void StartProducts() = 0;
  // The message of the answers, which are kept until it has left.
  virtual grpc::ByteBuffer MessageOf(std::vector<Ended>& answers) = 0;

  JobId Enter() {
    const JobId id = parts_.runner.NewId();
    MutexLock lock(&mutex_);
    running_.insert(id);
    return id;
  }

  // The product has ended, or was refused. Others that end with it leave in one message: gRPC takes
  // as long for a short one as for them all.
  void Answer(JobId id, Ended ended) {
    const bool is_put_off = Deferral::PutOff(this->shared_from_this());
    Step next;
    {
      MutexLock lock(&mutex_);
      running_.erase(id);
      answers_.push_back(std::move(ended));
      if (!is_put_off || answers_.size() >= kSentTogether) Decide(next);
    }
    Do(std::move(next));
  }

  absl::StatusOr<Arrival> ArrivalOfMessage() {
    return ArrivalOf(context_, origin_, parts_.clock.NowNs(), parts_.gate, parts_.runner.tensors());
  }
  std::optional<TraceSpan> SpanOfProduct() const {
    return span_ ? std::optional<TraceSpan>(ChildOf(*span_)) : std::nullopt;
  }

  // What was read is started. Nothing more is read where the client has broken the stream's rules.
  void EndReading(absl::Status refused = absl::OkStatus()) {
    {
      MutexLock lock(&mutex_);
      is_reading_ = false;
      if (!refused.ok()) {
        refused_ = std::move(refused);
        reads_ended_ = true;
      }
    }
    Advance();
  }

  // OnCancel may have come before products were queued.
  void CancelIfBroken() {
    std::vector<JobId> jobs;
    {
      MutexLock lock(&mutex_);
      if (broken_) jobs.assign(running_.begin(), running_.end());
    }
    if (!jobs.empty()) parts_.runner.Cancel(jobs);
  }

  const ServiceParts parts_;
  const HandlerTiming timing_;
  // The message that is read, until its products are started. Its reader's alone.
  WireBytes incoming_;

 private:
  // Answers that wait for one before them to leave. Who does not read them is sent no more.
  static constexpr size_t kMaxWaitingAnswers = 256;
  // So many answers do not wait for others that end with them: their callers go on meanwhile.
  static constexpr size_t kSentTogether = 16;

  // What follows from the state.
  struct Step {
    bool shall_read = false;
    bool shall_finish = false;
    std::vector<Ended> to_write;
    std::vector<Ended> unwanted;  // Freed without the lock.
    grpc::Status status;
  };

  // Nothing more is read and answered. `reason` is OK where the client has gone.
  void Break(absl::Status reason) {
    {
      MutexLock lock(&mutex_);
      broken_ = true;
      refused_.Update(std::move(reason));
    }
    CancelIfBroken();
    Advance();
  }

  size_t UnansweredRequests() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return running_.size() + answers_.size() + being_written_;
  }

  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !is_reading_ && !reads_ended_ && !broken_ && UnansweredRequests() < kMaxStreamRequests &&
           answers_.size() < kMaxWaitingAnswers;
  }

  // As many answers as one message holds.
  std::vector<Ended> TakeAnswers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Ended> taken;
    taken.reserve(std::min(answers_.size(), max_joint_));
    int64_t bytes = 0;
    while (!answers_.empty() && taken.size() < max_joint_) {
      bytes += answers_.front().bytes();
      if (!taken.empty() && bytes > kMaxJointAnswerBytes) break;
      taken.push_back(std::move(answers_.front()));
      answers_.pop_front();
    }
    return taken;
  }

  void Decide(Step& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (broken_) {
      std::move(answers_.begin(), answers_.end(), std::back_inserter(next.unwanted));
      answers_.clear();
    }
    if (being_written_ == 0 && !answers_.empty()) {
      next.to_write = TakeAnswers();
      being_written_ = next.to_write.size();
    }
    if (MayRead()) next.shall_read = is_reading_ = true;
    if (!is_reading_ && UnansweredRequests() == 0 && !finished_) {
      next.shall_finish = finished_ = true;
      next.status = broken_ && refused_.ok() ? grpc::Status::CANCELLED : ToGrpcStatus(refused_);
    }
  }

  void Do(Step next) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!next.to_write.empty()) Write(std::move(next.to_write));
    if (next.shall_read) StartRead(&incoming_);
    if (next.shall_finish) Finish(next.status);
  }

  // Their bytes stay in the account until they have left.
  void Write(std::vector<Ended> answers) {
    written_ = std::move(answers);
    const absl::Status status = OrNoMemory("message: no memory for the answers", [&] {
      grpc::ByteBuffer message = MessageOf(written_);
      answer_.buffer.Swap(&message);  // To assign it would copy the list of its slices.
      return absl::OkStatus();
    });
    if (!status.ok()) {
      written_.clear();
      {
        MutexLock lock(&mutex_);
        being_written_ = 0;
      }
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
  const std::optional<TraceSpan> span_;  // The span of the stream, parent of its products' spans.
  const Arrival origin_;
  const size_t max_joint_;
  SendWatch::Call sending_;
  std::shared_ptr<ProductStream> self_;

  // The message that is written, and what it answers. Its writer's alone.
  WireBytes answer_;
  std::vector<Ended> written_;

  Mutex mutex_;
  absl::flat_hash_set<JobId> running_ ABSL_GUARDED_BY(mutex_);
  std::deque<Ended> answers_ ABSL_GUARDED_BY(mutex_);  // To be written.
  size_t being_written_ ABSL_GUARDED_BY(mutex_) = 0;   // Answers.
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;    // Until what was read is started.
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;   // Closed by the client, or refused.
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;        // Cancelled, or a write failed.
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);  // Why the stream ends; OK where it may go on.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gemmd
