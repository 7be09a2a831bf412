// SPDX-License-Identifier: Apache-2.0
//
// One Multiply whose messages are bytes: neither request nor answer goes through protobuf with its
// matrices.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/lent_request.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"

namespace gemmd {

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

}  // namespace gemmd
