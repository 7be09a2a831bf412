// SPDX-License-Identifier: Apache-2.0
//
// The parts of a Client: the stubs of its channels, used in turn, and its asynchronous calls.
//
// Beware of where a channel is destroyed. gRPC 1.51 runs callbacks on threads that end, and are
// joined, with the last channel that used them; a thread that destroys that channel would join
// itself. So a call is destroyed before its client, and a client is destroyed on a user's thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/client_session.h"
#include "gemmd/client.h"
#include "gemmd/v1/admin.grpc.pb.h"
#include "gemmd/v1/gemm.grpc.pb.h"
#include "gemmd/v1/registry.grpc.pb.h"
#include "gemmd/v1/resident.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

namespace gemmd {

// The stubs of one channel.
struct Connection {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Gemm::Stub> gemm;
  std::unique_ptr<v1::Registry::Stub> registry;
  std::unique_ptr<v1::Admin::Stub> admin;
  std::unique_ptr<v1::Tensors::Stub> tensors;
};

// The asynchronous calls of one client that have not ended.
class OutstandingCalls {
 public:
  // Cancels the call before it starts if CancelAndWait has begun.
  void Add(const std::shared_ptr<AsyncCallState>& call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs the callback of a call that has ended, destroys the call, and only then removes it from
  // the list.
  void End(AsyncCallState* call, absl::StatusOr<v1::MultiplyResponse> result)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Cancels all calls and waits until they are gone. Returns false within a callback of such a
  // call, where it cannot wait.
  bool CancelAndWait() ABSL_LOCKS_EXCLUDED(mutex_);

  bool IsEmpty() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool HasEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return calls_.empty() && ending_ == 0;
  }

  mutable absl::Mutex mutex_;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<const AsyncCallState*, std::shared_ptr<AsyncCallState>> calls_
      ABSL_GUARDED_BY(mutex_);
  int ending_ ABSL_GUARDED_BY(mutex_) = 0;  // Calls that are being destroyed.
};

// Outlives every asynchronous call in `outstanding`, which refer to it.
struct ClientState {
  std::vector<Connection> connections;  // Constant after construction.
  absl::Duration timeout;               // Constant after construction.
  std::atomic<size_t> next = 0;
  OutstandingCalls outstanding;
  std::unique_ptr<ClientSession> session;  // Never null.

  Connection& Next() {
    return connections[next.fetch_add(1, std::memory_order_relaxed) % connections.size()];
  }

  // Gives a call its deadline and its metadata. Returns the session's token.
  std::string Prepare(grpc::ClientContext& context, const CallOptions& options) const {
    return session->Prepare(context, options.timeout.value_or(timeout), options.traceparent);
  }
};

// Keeps a client that was destroyed in one of its own callbacks, to be destroyed elsewhere.
void ParkClient(std::unique_ptr<ClientState> client);

// Destroys the parked clients whose calls are gone. Does nothing within a callback.
void EndParkedClients();

// One asynchronous Multiply, and the calls that send it.
struct AsyncCallState {
  AsyncCallState(ClientState& owner, Client::MultiplyDone callback, SteadyTime until,
                 std::string trace)
      : client(owner), done(std::move(callback)), deadline(until), traceparent(std::move(trace)) {}

  // One call. It runs the callback, unless the server has refused it because it has lost a tensor:
  // that may be restored, which takes time and is done on a thread of the session.
  struct Attempt final : public grpc::ClientUnaryReactor {
    Attempt(AsyncCallState& state, std::shared_ptr<const v1::MultiplyRequest> message)
        : call(state), request(std::move(message)) {}
    void OnDone(const grpc::Status& status) override;

    AsyncCallState& call;
    grpc::ClientContext context;
    const std::shared_ptr<const v1::MultiplyRequest> request;
    v1::MultiplyResponse response;
  };

  void Start(std::shared_ptr<const v1::MultiplyRequest> request) ABSL_LOCKS_EXCLUDED(mutex);
  void SendAgain(const absl::Status& refusal, const v1::MultiplyRequest& refused)
      ABSL_LOCKS_EXCLUDED(mutex);
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex);
  bool IsCancelled() ABSL_LOCKS_EXCLUDED(mutex) {
    absl::MutexLock lock(&mutex);
    return is_cancelled;
  }

  ClientState& client;
  Client::MultiplyDone done;
  const SteadyTime deadline;
  const std::string traceparent;
  SentTensors sent;  // By the last attempt.
  absl::Mutex mutex;
  bool is_cancelled ABSL_GUARDED_BY(mutex) = false;
  std::list<Attempt> attempts ABSL_GUARDED_BY(mutex);  // Kept: Cancel may be about to use one.
};

}  // namespace gemmd
