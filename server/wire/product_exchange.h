// SPDX-License-Identifier: Apache-2.0
//
// One product of a peer, from the bytes of its request to the bytes of its answer: the same for
// unary calls and streams.
//
// All that it keeps is in the account of admission: the request's bytes from their arrival, what is
// made of them, and the result until the exchange ends. A refused exchange keeps nothing.
#pragma once

#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "gemmd/v1/gemm.pb.h"
#include "server/scheduling/product_runner.h"
#include "server/system/clock.h"
#include "server/wire/gate.h"
#include "server/wire/held_fields.h"
#include "server/wire/incoming.h"
#include "server/wire/joint_answer.h"
#include "server/wire/outgoing.h"
#include "server/wire/receive_quota.h"

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

// A message in memory of its owner. What does not fit into so many bytes is allocated, and so is
// what another thread than the one that made it adds.
template <typename Message, size_t kBytes>
class MessageOn {
 public:
  MessageOn() = default;
  MessageOn(const MessageOn&) = delete;
  MessageOn& operator=(const MessageOn&) = delete;

  Message& operator*() { return *message_; }
  const Message& operator*() const { return *message_; }
  Message* operator->() { return message_; }

 private:
  alignas(std::max_align_t) char bytes_[kBytes];
  google::protobuf::Arena arena_{bytes_, kBytes};
  Message* const message_ = google::protobuf::Arena::CreateMessage<Message>(&arena_);
};

// A product with the request that it borrows its operands of.
struct RequestedProduct final : Product {
  MessageOn<v1::MultiplyRequest, 1024> message;  // Without the bytes that are held apart from it.
  HeldFields held;
};

class ProductExchange {
 public:
  using Answer = absl::AnyInvocable<void(const absl::Status&) &&>;

  // Parses the request and starts its product. Borrows runner and quota. Where this returns OK,
  // `answer` is called exactly once, perhaps before this returns; the exchange lives until then.
  // Errors: as Gemm.Multiply of the wire contract; `answer` is then never called.
  absl::StatusOr<JobId> Start(ProductRunner& runner, ReceiveQuota& quota, Incoming request,
                              Arrival arrival, Answer answer);
  absl::StatusOr<JobId> Start(ProductRunner& runner, ReceiveQuota& quota, ArrivedRequest& request,
                              Arrival arrival, Answer answer);

  // The id of the request, as far as it could be read.
  const std::string& request_id() const { return request_id_; }

  // The bytes of the answer and what gRPC adds, once the product is OK.
  int64_t answer_bytes() const { return static_cast<int64_t>(d_.size()) + kAnswerOverheadBytes; }

  // The product is OK and waits to be answered: its place among the requests is free, and its bytes
  // are those of the answer.
  void LeaveQueue();

  // The answer to a product that is OK and has left the queue, once.
  grpc::ByteBuffer TakeUnaryAnswer();
  void TakeAnswer(JointAnswer& to);
  // Its parts, for another protocol: the answer lacks the bytes of D.
  v1::MultiplyResponse TakeResponse() { return std::move(**response_); }
  HeldBytes TakeD() { return std::move(d_); }
  const v1::MultiplyResponse& response() const { return **response_; }

 private:
  absl::StatusOr<JobId> StartProduct(ProductRunner& runner, ReceiveQuota& quota,
                                     ArrivedRequest& request, Arrival arrival, Answer answer);
  void End(Product& product);
  void Release();

  std::string request_id_;
  Answer answer_;
  // Without the bytes of D. Absent until the product is OK.
  std::optional<MessageOn<v1::MultiplyResponse, 1024>> response_;
  HeldBytes d_;
  Admission::Ticket ticket_;
};

// The span of a call whose metadata have one valid `traceparent`. Adds the span to the trailing
// metadata of the answer: call it once, before anything can end the call.
std::optional<TraceSpan> StartSpan(grpc::CallbackServerContext& context);

// What a call's context says about its deadline, its peer and who that is. The method's name is a
// literal: "Multiply".
// Errors: as Gate::CallerOf.
absl::StatusOr<Arrival> ArrivalOf(grpc::CallbackServerContext& context, std::string_view method,
                                  int64_t arrived_ns, const Gate& gate, const Clock& clock);

}  // namespace gemmd
