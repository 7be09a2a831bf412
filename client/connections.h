// SPDX-License-Identifier: Apache-2.0
//
// What a Client shares with its calls: the channels' stubs, taken in turn, and the asynchronous
// calls under way. Calls hold it too, so it lives until the last of them has ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gemmd/client.h"
#include "gemmd/v1/gemm.grpc.pb.h"
#include "gemmd/v1/registry.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace gemmd {

// The stubs of one channel.
struct Connection {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Gemm::Stub> gemm;
  std::unique_ptr<v1::Registry::Stub> registry;
};

// The asynchronous calls of one client that have not ended.
class OutstandingCalls {
 public:
  // Cancels the call before it starts where CancelAndWait has begun.
  void Add(const std::shared_ptr<AsyncCallState>& call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Called as the last thing of a call, when its callback has returned.
  void Remove(const AsyncCallState* call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Cancels all calls and, unless this thread is in the callback of one of them, waits for their
  // end.
  void CancelAndWait() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool IsEmpty() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_.empty(); }

  absl::Mutex mutex_;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<const AsyncCallState*, std::shared_ptr<AsyncCallState>> calls_
      ABSL_GUARDED_BY(mutex_);
};

struct Client::State {
  std::vector<Connection> connections;  // Constant after construction.
  absl::Duration timeout;               // Constant after construction.
  std::atomic<size_t> next = 0;
  OutstandingCalls outstanding;

  Connection& Next() {
    return connections[next.fetch_add(1, std::memory_order_relaxed) % connections.size()];
  }

  // Gives a call its deadline.
  void SetDeadline(grpc::ClientContext& context, const CallOptions& options) const;
};

// One asynchronous Multiply. `context` before everything else: the call uses all of it to the end.
struct AsyncCallState {
  grpc::ClientContext context;
  v1::MultiplyRequest request;
  v1::MultiplyResponse response;
  Client::MultiplyDone done;
};

}  // namespace gemmd
