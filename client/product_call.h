// SPDX-License-Identifier: Apache-2.0
//
// One Multiply whose messages are bytes: neither request nor answer goes through protobuf with its
// matrices, which are sent from where they lie and received where they stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "gemmd/product.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/gemm.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace gemmd {

// Lends ranges of memory to gRPC, which lets go of them on threads of its own: later than the end
// of the call that they were for, since a transport may still write them. Each must be returned
// before the memory goes.
class LentBytes {
 public:
  LentBytes() = default;
  LentBytes(const LentBytes&) = delete;
  LentBytes& operator=(const LentBytes&) = delete;

  // Waits until all is returned. A connection that nobody reads from is given up within 30 s, and
  // what it held is returned.
  ~LentBytes();

  // The bytes, to be sent without a copy.
  grpc::Slice Lend(std::span<const std::byte> bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static void Return(void* lender);
  bool HasAll() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lent_ == 0; }

  absl::Mutex mutex_;
  int64_t lent_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The message without the bytes of its matrices, and where those are. Absent: they are not sent.
struct LentRequest {
  using Bytes = std::optional<std::span<const std::byte>>;
  v1::MultiplyRequest message;
  Bytes a = {};
  Bytes b = {};
  Bytes c = {};
  Bytes bias = {};
};

// Borrows what the views borrow. Errors: as BuildRequest.
absl::StatusOr<LentRequest> BuildLentRequest(const MatrixView& a, const MatrixView& b,
                                             const ProductOptions& options);
absl::StatusOr<LentRequest> BuildLentRequest(const Operand& a, const Operand& b,
                                             const ProductOptions& options,
                                             const std::optional<TensorView>& c = {});
absl::StatusOr<LentRequest> BuildLentChainRequest(const Operand& a, const Operand& b,
                                                  const ChainOptions& options);

// The wire's bytes of it; those of long matrices are lent by `lender`.
grpc::ByteBuffer ToByteBuffer(LentRequest request, LentBytes& lender);

// Reads a MultiplyResponse. D goes to `into`, of exactly as many bytes, unless that is empty.
// Errors: DataLoss where the bytes are no such answer; InvalidArgument where `into` is of another
// size.
absl::StatusOr<MultiplyResult> ReadProductAnswer(grpc::ByteBuffer& answer,
                                                 std::span<std::byte> into);

// Destroyed on a thread of the user's, which waits for gRPC to let go of what it reads.
class ProductCall {
 public:
  explicit ProductCall(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {}
  ~ProductCall();
  ProductCall(const ProductCall&) = delete;
  ProductCall& operator=(const ProductCall&) = delete;

  grpc::ClientContext& context() { return context_; }

  // Once, before anything else but context().
  void Start(LentRequest request, std::span<std::byte> into);

  absl::StatusOr<MultiplyResult> Wait() ABSL_LOCKS_EXCLUDED(mutex_);
  // The same where D stays on the server: the message, without a look at D.
  absl::StatusOr<v1::MultiplyResponse> WaitForMessage() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status AwaitEnd() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return has_ended_; }

  LentBytes lent_;  // Goes last: what follows keeps the bytes.
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer answer_;
  std::span<std::byte> into_;
  bool is_started_ = false;

  absl::Mutex mutex_;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Products of a stream that wait to be sent, as the message in which they will go.
class RequestQueue {
 public:
  // A product as it lies within a message.
  static std::string PartOf(const v1::MultiplyRequest& request);

  // Whether the message takes a further part. An empty one takes any.
  bool Takes(const std::string& part) const;
  void Add(std::string part);

  bool empty() const { return count_ == 0; }
  void Clear() { *this = RequestQueue(); }

  // The message; then the queue is empty.
  grpc::ByteBuffer Take();

  // What a message holds at most: less than servers take, and not so much that the first product
  // waits long for the last one.
  static constexpr int kMaxRequests = 256;
  static constexpr size_t kMaxBytes = size_t{1} << 20;  // Where there are several.

 private:
  std::string message_;
  int count_ = 0;
};

}  // namespace gemmd
