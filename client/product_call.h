// SPDX-License-Identifier: Apache-2.0
//
// One Multiply call with raw messages: matrices bypass protobuf, and are sent from and received
// into the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/client_session.h"
#include "gemmd/product.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/gemm.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace gemmd {

// Sets the factors of blocks of an operand.
void FillBlocks(const BlockScaleView& view, v1::Scale& scale);

// Lends ranges of memory to gRPC, which returns them on its own threads, possibly after the end of
// the call, because a transport may still write them. All must be returned before the memory is
// freed.
class LentBytes {
 public:
  LentBytes() = default;
  LentBytes(const LentBytes&) = delete;
  LentBytes& operator=(const LentBytes&) = delete;

  // Waits until all ranges are returned. A connection whose peer does not read is closed within 30
  // s, which returns its ranges.
  ~LentBytes();

  // Wraps the bytes to be sent without a copy.
  grpc::Slice Lend(std::span<const std::byte> bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static void Return(void* lender);
  bool HasAll() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lent_ == 0; }

  absl::Mutex mutex_;
  int64_t lent_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A request message without the bytes of its matrices, and where those bytes are. Absent: not sent.
struct LentRequest {
  using Bytes = std::optional<std::span<const std::byte>>;
  v1::MultiplyRequest message;
  Bytes a = {};
  Bytes b = {};
  Bytes c = {};
};

// Borrows the views' memory. Errors: those of BuildRequest.
absl::StatusOr<LentRequest> BuildLentRequest(const Operand& a, const Operand& b,
                                             const ProductOptions& options,
                                             const std::optional<TensorView>& c = {});
absl::StatusOr<LentRequest> BuildLentChainRequest(const Operand& a, const Operand& b,
                                                  const ChainOptions& options);

// Serializes the request; `lender` lends the bytes of long matrices.
grpc::ByteBuffer ToByteBuffer(LentRequest request, LentBytes& lender);

// Reads a MultiplyResponse. D goes to `into`, which has exactly D's size, unless `into` is empty.
// Errors: DataLoss for a malformed answer; InvalidArgument if `into` has another size.
absl::StatusOr<MultiplyResult> ReadProductAnswer(grpc::ByteBuffer& answer,
                                                 std::span<std::byte> into);

// What sends a product again that the server refused because it has lost a restorable tensor.
struct ProductRetry {
  std::shared_ptr<TensorOwner> owner;
  std::shared_ptr<grpc::Channel> channel;
  SteadyTime deadline;
  std::string traceparent;
  SentTensors sent;
  LentRequest request;  // Without a message if `sent` names no restorable tensor.
};

// Writes the current handles of tensors into a request, and returns what sends it again; null if it
// names no tensors. `token`: of the session, as it is sent.
std::unique_ptr<ProductRetry> RetryOf(ClientSession& session, LentRequest& request,
                                      std::string token, std::shared_ptr<grpc::Channel> channel,
                                      SteadyTime deadline, const std::string& traceparent);

// Destroy on a user's thread: the destructor waits until gRPC has returned the memory that it
// reads.
class ProductCall {
 public:
  explicit ProductCall(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {}
  ~ProductCall();
  ProductCall(const ProductCall&) = delete;
  ProductCall& operator=(const ProductCall&) = delete;

  grpc::ClientContext& context() { return context_; }

  // Call once, before any other function except context(). With `retry`, the wait sends a refused
  // product again.
  void Start(LentRequest request, std::span<std::byte> into,
             std::unique_ptr<ProductRetry> retry = nullptr);

  // Any thread may call it, at any time.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<MultiplyResult> Wait() ABSL_LOCKS_EXCLUDED(mutex_);
  // The same if D stays on the server: returns the message without checking D.
  absl::StatusOr<v1::MultiplyResponse> WaitForMessage() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status AwaitEnd() ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends the product again if a restoration promises success. Errors: the status to return.
  absl::StatusOr<ProductCall*> Again(const absl::Status& refusal) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return has_ended_; }

  LentBytes lent_;  // Destroyed last: the members below use its bytes.
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer answer_;
  std::span<std::byte> into_;
  bool is_started_ = false;
  std::unique_ptr<ProductRetry> retry_;

  absl::Mutex mutex_;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<ProductCall> again_ ABSL_GUARDED_BY(mutex_);
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Products of a stream waiting to be sent, serialized into one message.
class RequestQueue {
 public:
  // A product, serialized as a part of the message.
  static std::string PartOf(const v1::MultiplyRequest& request);

  // Whether the message takes a further part. An empty one takes any.
  bool Takes(const std::string& part) const;
  void Add(std::string part);

  bool empty() const { return count_ == 0; }
  void Clear() { *this = RequestQueue(); }

  // Takes the message, and empties the queue.
  grpc::ByteBuffer Take();

  // Limits of a message: less than servers accept, and so few that the first product does not wait
  // long for the last.
  static constexpr int kMaxRequests = 256;
  static constexpr size_t kMaxBytes = size_t{1} << 20;  // A single larger product is allowed.

 private:
  std::string message_;
  int count_ = 0;
};

}  // namespace gemmd
