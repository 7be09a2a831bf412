// SPDX-License-Identifier: Apache-2.0
//
// The session of one client: its token, the stream that keeps it open, and its background calls.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/transfer.h"
#include "gemmd/client.h"
#include "gemmd/tensor.h"
#include "gemmd/v1/resident.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace gemmd {

class ClientSession;

// The link from a ResidentTensor to its client. It outlives the client and then has no session.
struct TensorOwner {
  absl::Mutex mutex;
  ClientSession* session ABSL_GUARDED_BY(mutex) = nullptr;
};

// Threads: any thread, except for construction and destruction.
class ClientSession {
 public:
  // `channel` carries the session's stream and calls. The constructor makes no call.
  ClientSession(std::string address, ClientOptions options, std::shared_ptr<grpc::Channel> channel);

  // Ends the stream, and waits until none of the session's calls is in progress.
  ~ClientSession();

  // Returns the session as the server described it; opens one if there is none. Errors: the
  // server's own; Unauthenticated if the joined session no longer exists; DeadlineExceeded.
  absl::StatusOr<SessionInfo> Open(SteadyTime deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // Joins the session of that token. Errors: those of Open; FailedPrecondition if there is another
  // session.
  absl::StatusOr<SessionInfo> Join(const std::string& token, SteadyTime deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Empty if there is no session.
  std::string token() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Adds the caller's identity and the session's token, if any, to a call.
  void AddMetadata(grpc::ClientContext& context) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns `count` connections used only for tensor transfers, so that products do not wait behind
  // them. Creates missing ones.
  absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> Lanes(int count)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Deletes a tensor, without waiting for the answer.
  void DeleteSoon(const std::string& handle) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until the server has answered earlier deletions, so that their memory is free.
  void AwaitDeletions(SteadyTime deadline) const ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<TensorOwner>& owner() const { return owner_; }

  // The number of connections for the next transfers, learned from the transfers so far.
  LaneChoice& upload_lanes() { return upload_lanes_; }
  LaneChoice& download_lanes() { return download_lanes_; }

 private:
  class Deletion;
  enum class State { kNone, kOpening, kOpen, kFailed };

  void AddToken(grpc::ClientContext& context) const;
  void StartKeeper() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ServeOnce(bool* has_opened) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<SessionInfo> AwaitOpen(SteadyTime deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndDeletion(Deletion* deletion) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasOpened() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return state_ == State::kOpen || state_ == State::kFailed;
  }
  bool HasNoDeletions() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return deletions_.empty() && ending_deletions_ == 0;
  }

  // Constant after construction.
  const std::string address_;
  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Tensors::Stub> stub_;
  const std::shared_ptr<TensorOwner> owner_ = std::make_shared<TensorOwner>();

  LaneChoice upload_lanes_;
  LaneChoice download_lanes_;

  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNone;
  SessionInfo info_ ABSL_GUARDED_BY(mutex_);
  bool was_joined_ ABSL_GUARDED_BY(mutex_) = false;  // Joined with a token from the user.
  absl::Status status_ ABSL_GUARDED_BY(mutex_);      // Why the session ended.
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;  // The open stream.
  std::thread keeper_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<grpc::Channel>> lanes_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Deletion*, std::unique_ptr<Deletion>> deletions_ ABSL_GUARDED_BY(mutex_);
  int ending_deletions_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemmd
