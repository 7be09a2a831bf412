// SPDX-License-Identifier: Apache-2.0
//
// One product of a peer, from the bytes of its request to the bytes of its answer: the same for
// unary calls and streams.
//
// All that it keeps is in the account of admission: the request's bytes from their arrival, what is
// made of them, and the result until the answer has left. A refused product keeps nothing.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/metrics/handler_times.h"
#include "server/product/product_runner.h"
#include "server/system/clock.h"
#include "server/wire/calls.h"
#include "server/wire/gate.h"
#include "server/wire/incoming.h"
#include "server/wire/outgoing.h"

namespace gemmd {

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

  // As RequestedProduct::Start, with what the request arrived with. The exchange lives until
  // `answer` is called. Returns the number by which the product can be cancelled.
  absl::StatusOr<JobId> Start(ProductRunner& runner, ReceiveQuota& quota, Incoming request,
                              Arrival arrival, Answer answer);
  absl::StatusOr<JobId> Start(ProductRunner& runner, ReceiveQuota& quota, ArrivedRequest& request,
                              Arrival arrival, Answer answer);

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
  using Begin = absl::FunctionRef<absl::StatusOr<JobId>(Exchange& exchange, Arrival arrival,
                                                        ProductExchange::Answer answer)>;

  template <typename... Arguments>
  UnaryProduct(const HandlerTiming& timing, ProductRunner& runner, SendWatch& watch,
               grpc::CallbackServerContext& context, WireBytes& response, Arguments&&... arguments)
      : timing_(timing),
        runner_(runner),
        context_(context),
        response_(response),
        exchange_(std::forward<Arguments>(arguments)...),
        sending_(watch, context) {}

  // `begin` starts the exchange; where the call may not be made it is refused instead.
  void Start(absl::StatusOr<Arrival> arrival, Begin begin) {
    std::optional<TraceSpan> span = StartSpan(context_);
    if (!arrival.ok()) return Finish(ToGrpcStatus(arrival.status()));
    arrival->span = std::move(span);
    absl::StatusOr<JobId> id = begin(exchange_, *std::move(arrival),
                                     [this](const absl::Status& status) { Answer(status); });
    if (id.ok()) {
      job_id_ = *id;
    } else {
      Answer(id.status());
    }
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

}  // namespace gemmd
