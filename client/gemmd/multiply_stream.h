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
// Products that are sent while the connection takes no more go together, in one message, and so do
// answers: that costs far less than a message for each.
//
// At most kMaxUnreceived products may be sent whose answers are not received: so many answers are
// kept in memory, and more are never asked for. While the matrices of those that are kept take
// kMaxUnreceivedBytes, no further message is read from the server, which in the end reads no more
// products, and ends a stream that it cannot write to for long (--send-timeout). Receive while
// sending.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemmd/product.h"
#include "gemmd/wire_types.h"

namespace gemmd {

// The end of one product of a stream: the answer, never null, or why there is none.
struct StreamAnswer {
  std::string request_id;
  absl::StatusOr<std::shared_ptr<v1::MultiplyResponse>> response;

  // D, which it shares with the answer. Errors: those of MultiplyResult::FromResponse.
  absl::StatusOr<MultiplyResult> result() const;
};

// Threads: every function may be called by any thread at any time, except destruction. Requests
// sent by several threads at once go out in some order.
class MultiplyStream {
 public:
  // Cancels what is unfinished and waits for the end of the call, which is prompt. Not within a
  // callback of MultiplyAsync.
  ~MultiplyStream();

  // The most products that may be sent before an answer is received.
  static constexpr int kMaxUnreceived = 1024;
  // The bytes of matrices D that were read and not received; the last message may go beyond.
  static constexpr int64_t kMaxUnreceivedBytes = int64_t{64} << 20;

  MultiplyStream(const MultiplyStream&) = delete;
  MultiplyStream& operator=(const MultiplyStream&) = delete;

  // Sends one product, or adds it to those that go once the connection takes more bytes. Blocks
  // while they fill a message; the server stops reading while 1024 products of the stream are
  // unanswered. Answers are read at the same time, so one thread may send kMaxUnreceived products
  // first and receive afterwards, where their results take less than kMaxUnreceivedBytes. Errors:
  // ResourceExhausted where that many answers are not received yet, or where so many bytes of them
  // are not that nothing goes, and nobody receives one within a second. Then nothing is sent:
  // receive one and send again; FailedPrecondition after
  // CloseSending; after the end of the stream, the stream's own status, or Unavailable where it
  // ended with OK.
  absl::Status Send(const v1::MultiplyRequest& request);

  // The same, for matrices in memory of the caller, which are copied; without `into`.
  absl::Status Send(const MatrixView& a, const MatrixView& b, const ProductOptions& options = {});

  // Says that no more products come, once those that wait have gone. May be repeated.
  void CloseSending();

  // The next answer, in order of arrival. Blocks until there is one; nothing at the end of the
  // stream.
  std::optional<StreamAnswer> Receive();

  // Closes sending, waits for the end of the stream, and gives its status: OK where the server
  // answered everything. Answers not yet received stay receivable, all of them: from now on they
  // are read whatever they take.
  absl::Status Finish();

  // Asks for the end: the server launches nothing more. Finish then gives Cancelled.
  void Cancel();

 private:
  friend class Client;
  class Reactor;
  explicit MultiplyStream(std::unique_ptr<Reactor> reactor);

  std::unique_ptr<Reactor> reactor_;
};

}  // namespace gemmd
