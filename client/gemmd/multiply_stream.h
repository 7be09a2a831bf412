// SPDX-License-Identifier: Apache-2.0
//
// Many products on one stream: answered as they finish, in any order, matched by request_id.
//
//   auto stream = client.OpenMultiplyStream({.timeout = absl::Hours(1)});
//   for (...) stream->Send(a, b, {.request_id = id});  // each with its own
//   stream->CloseSending();
//   while (auto answer = stream->Receive()) ...        // answer->request_id, answer->result()
//   absl::Status status = stream->Finish();
//
// While the connection is busy, products to be sent collect into one message, and so do answers:
// far cheaper than one message each.
//
// At most kMaxUnreceived sent products may lack a received answer; their answers are kept in
// memory. While the kept matrices take kMaxUnreceivedBytes, the client reads no further message.
// The server then stops reading products, and ends a stream that it cannot write to for
// --send-timeout. So receive while sending.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/product.h"
#include "gemmd/tensor.h"
#include "gemmd/wire_types.h"

namespace gemmd {

// The outcome of one product of a stream: the answer (never null) or an error.
struct StreamAnswer {
  std::string request_id;
  absl::StatusOr<std::shared_ptr<v1::MultiplyResponse>> response;

  // D, sharing its bytes with `response`. Errors: those of MultiplyResult::FromResponse.
  absl::StatusOr<MultiplyResult> result() const;
};

// Threads: any thread may call any function at any time, except destruction. The order of requests
// sent by several threads at once is unspecified.
class MultiplyStream {
 public:
  // Cancels unfinished products and waits for the end of the call, which is prompt. Do not destroy
  // a stream within a callback of MultiplyAsync.
  ~MultiplyStream();

  // The max number of products sent whose answers have not been received.
  static constexpr int kMaxUnreceived = 1024;
  // The max bytes of matrices D that were read but not received. The last message read may exceed
  // it.
  static constexpr int64_t kMaxUnreceivedBytes = int64_t{64} << 20;

  MultiplyStream(const MultiplyStream&) = delete;
  MultiplyStream& operator=(const MultiplyStream&) = delete;

  // Sends one product, or queues it until the connection takes more bytes. Blocks while the queued
  // products fill a message; the server stops reading while 1024 products of the stream are
  // unanswered. Answers are read at the same time, so one thread may send kMaxUnreceived products
  // first and receive afterwards, if their results take less than kMaxUnreceivedBytes. Errors:
  // ResourceExhausted if kMaxUnreceived answers are not received yet, or if unreceived bytes block
  // sending, and nobody receives an answer within a second: the product was not sent, so receive an
  // answer and send again. FailedPrecondition after CloseSending. After the end of the stream, the
  // stream's own status, or Unavailable if the stream ended with OK.
  absl::Status Send(const v1::MultiplyRequest& request);

  // The same for operands of any kind; matrices in the caller's memory are copied. Ignores `into`.
  absl::Status Send(const Operand& a, const Operand& b, const ProductOptions& options = {});

  // Tells the server that no more products follow, once the queued ones are sent. May be repeated.
  void CloseSending();

  // Returns the next answer, in order of arrival. Blocks until one arrives; nullopt at the end of
  // the stream. If the server has refused a product because it has lost a tensor of
  // PutOptions::restorable, puts the tensor again, sends the product as a call of its own, within
  // the stream's deadline, and returns its answer. Such products need an id that no other one of
  // the stream has, and are kept in memory until their answers are received.
  std::optional<StreamAnswer> Receive();

  // Closes sending, waits for the end of the stream and returns its status: OK if the server
  // answered everything. Answers not yet received can still be received: Finish reads all of them,
  // without the limit on bytes.
  absl::Status Finish();

  // Cancels the stream: the server launches nothing more. Finish then returns Cancelled.
  void Cancel();

 private:
  friend class Client;
  class Reactor;
  MultiplyStream(std::unique_ptr<Reactor> reactor, std::shared_ptr<TensorOwner> owner);

  std::unique_ptr<Reactor> reactor_;
  std::shared_ptr<TensorOwner> owner_;  // Of the tensors that products name.
};

}  // namespace gemmd
