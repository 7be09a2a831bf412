// SPDX-License-Identifier: Apache-2.0
//
// The session of one client: its token, the stream that keeps it open, and its background calls.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/restorable_tensors.h"
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
  int users ABSL_GUARDED_BY(mutex) = 0;  // The session's destructor waits for these.
};

// Keeps the session of a client from being destroyed.
class SessionUse {
 public:
  explicit SessionUse(std::shared_ptr<TensorOwner> owner);
  ~SessionUse();
  SessionUse(const SessionUse&) = delete;
  SessionUse& operator=(const SessionUse&) = delete;

  ClientSession* session() const { return session_; }  // Null if the client is gone.

 private:
  const std::shared_ptr<TensorOwner> owner_;
  ClientSession* session_ = nullptr;
};

// Whether the server refused a call because it does not know the session of its token. The call has
// not begun.
bool IsSessionRefusal(const absl::Status& status);

// Whether a call was refused, before it began, for a reason that ClientSession::Restore may remove.
bool IsLoss(const absl::Status& status);

// How a request that names tensors was sent.
struct SentTensors {
  std::vector<RestorableTensors::Use> uses = {};  // The restorable tensors that it names.
  std::string token = {};                         // Of the session; empty: none.
  bool is_upload = false;     // It needs a session, and nothing that a lost one had.
  int restorations_left = 4;  // A server may be restarted again while tensors are restored.
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

  // Opens another session if the server has refused a call with the token `refused`, and this is
  // still the session's. Errors: those of Open.
  absl::StatusOr<SessionInfo> Renew(const std::string& refused, SteadyTime deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Empty if there is no session.
  std::string token() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Adds the caller's identity and the session's token, if any, to a call. Returns that token.
  std::string AddMetadata(grpc::ClientContext& context) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives a call its deadline and its metadata. Returns the session's token.
  std::string Prepare(grpc::ClientContext& context, absl::Duration timeout,
                      const std::string& traceparent) const ABSL_LOCKS_EXCLUDED(mutex_);

  // The tensors that are put again once the server has lost them.
  RestorableTensors& restorable() { return restorable_; }

  // Writes current handles into a product, and returns the restorable tensors that it names. The
  // tensor of its D is not restorable any more.
  std::vector<RestorableTensors::Use> Translate(v1::MultiplyRequest& request);

  // A copy, for a request that must not change. Nullopt if the request can be sent as it is.
  struct TranslatedProduct {
    std::shared_ptr<const v1::MultiplyRequest> request;
    std::vector<RestorableTensors::Use> uses;
  };
  std::optional<TranslatedProduct> Translated(const v1::MultiplyRequest& request);

  // Prepares to send a call again that the server refused: puts the restorable tensors that it
  // names again if the server has lost them, in a new session if it has lost that. OK: send it
  // again. Otherwise the status to return: `refusal`, with advice if its tensors went with their
  // session; or, with the reason, that of what failed.
  absl::Status Restore(const absl::Status& refusal, SentTensors& sent, SteadyTime deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs work that may block, such as Restore, on a thread of the session: all of it in turn. None
  // may be left when the session is destroyed.
  void RunSoon(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends waits for the session, as its destructor does.
  void BeginClosing() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns `count` connections used only for tensor transfers, so that products do not wait behind
  // them. Creates missing ones.
  absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> Lanes(int count)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Deletes a tensor, without waiting for the answer. It is no longer restorable.
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
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndDeletion(Deletion* deletion) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<v1::TensorInfo> Describe(const v1::TensorRef& tensor, SteadyTime deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasOpened() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return state_ == State::kOpen || state_ == State::kFailed || is_closing_;
  }
  bool IsHurried() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return is_closing_ || is_doubted_;
  }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !work_.empty() || is_work_over_;
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

  RestorableTensors restorable_;
  LaneChoice upload_lanes_;
  LaneChoice download_lanes_;

  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNone;
  SessionInfo info_ ABSL_GUARDED_BY(mutex_);
  bool was_joined_ ABSL_GUARDED_BY(mutex_) = false;  // Joined with a token from the user.
  absl::Status status_ ABSL_GUARDED_BY(mutex_);      // Why the session ended.
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_doubted_ ABSL_GUARDED_BY(mutex_) = false;    // Its token was refused: ask the server.
  bool has_lost_one_ ABSL_GUARDED_BY(mutex_) = false;  // A session, with its tensors.
  grpc::ClientContext* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;  // The open stream.
  std::thread keeper_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<grpc::Channel>> lanes_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Deletion*, std::unique_ptr<Deletion>> deletions_ ABSL_GUARDED_BY(mutex_);
  int ending_deletions_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  bool is_work_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread worker_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
