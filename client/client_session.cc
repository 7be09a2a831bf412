// SPDX-License-Identifier: Apache-2.0
#include "client/client_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/channel.h"
#include "grpcpp/support/client_callback.h"
#include "kernels/matrix/status.h"
#include "proto/deadline_after.h"

namespace gemmd {
namespace {

constexpr char kSessionKey[] = "gemmd-session";

// The delay between attempts to resume a session. After its linger time the session is gone.
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(2);

// The longest wait for a deletion.
constexpr absl::Duration kDeletionTimeout = absl::Seconds(10);

bool IsToken(const std::string& token) {
  return !token.empty() && std::all_of(token.begin(), token.end(),
                                       [](unsigned char c) { return c > ' ' && c <= '~'; });
}

// Whether a stream that ended with `status` may be reopened with the same token.
bool MayReturn(const absl::Status& status) {
  return !absl::IsUnauthenticated(status) && !absl::IsUnimplemented(status) &&
         !absl::IsInvalidArgument(status) && !absl::IsNotFound(status);
}

}  // namespace

// One call that deletes a tensor. The call and its reference to the channel are destroyed before
// the session forgets the call; connections.h says why.
class ClientSession::Deletion final : public grpc::ClientUnaryReactor {
 public:
  Deletion(ClientSession& session, const std::string& handle) : session_(session) {
    request_.set_handle(handle);
    context_.set_deadline(DeadlineAfter(kDeletionTimeout));
  }

  grpc::ClientContext& context() { return context_; }
  void Start(v1::Tensors::Stub& stub) {
    stub.async()->Delete(&context_, &request_, &response_, this);
    StartCall();
  }
  void OnDone(const grpc::Status& /*status*/) override { session_.EndDeletion(this); }

 private:
  ClientSession& session_;
  grpc::ClientContext context_;
  v1::TensorRef request_;
  v1::DeleteTensorResponse response_;
};

ClientSession::ClientSession(std::string address, ClientOptions options,
                             std::shared_ptr<grpc::Channel> channel)
    : address_(std::move(address)),
      options_(std::move(options)),
      channel_(std::move(channel)),
      stub_(v1::Tensors::NewStub(channel_)) {
  absl::MutexLock lock(&owner_->mutex);
  owner_->session = this;
}

ClientSession::~ClientSession() {
  {
    absl::MutexLock lock(&owner_->mutex);
    owner_->session = nullptr;
  }
  std::thread keeper;
  {
    absl::MutexLock lock(&mutex_);
    is_closing_ = true;
    if (stream_ != nullptr) stream_->TryCancel();
    keeper.swap(keeper_);
    // Waits for requested deletions, except those that the server does not answer.
    mutex_.AwaitWithTimeout(absl::Condition(this, &ClientSession::HasNoDeletions),
                            absl::Seconds(1));
    for (const auto& [deletion, owned] : deletions_) deletion->context().TryCancel();
    mutex_.Await(absl::Condition(this, &ClientSession::HasNoDeletions));
  }
  if (keeper.joinable()) keeper.join();
}

std::string ClientSession::token() const {
  absl::MutexLock lock(&mutex_);
  return info_.token;
}

void ClientSession::AddMetadata(grpc::ClientContext& context) const {
  AddToken(context);
  const std::string current = token();
  if (!current.empty()) context.AddMetadata(kSessionKey, current);
}

void ClientSession::AddToken(grpc::ClientContext& context) const {
  if (!options_.token.empty()) {
    context.AddMetadata("authorization", absl::StrCat("Bearer ", options_.token));
  }
}

absl::StatusOr<SessionInfo> ClientSession::Open(SteadyTime deadline) {
  absl::MutexLock lock(&mutex_);
  // A session requested by token is not replaced by another.
  if (state_ == State::kFailed && was_joined_ && !MayReturn(status_)) return status_;
  if (state_ == State::kNone || state_ == State::kFailed) {
    if (!was_joined_) info_ = {};
    StartKeeper();
  }
  return AwaitOpen(deadline);
}

absl::StatusOr<SessionInfo> ClientSession::Join(const std::string& token, SteadyTime deadline) {
  if (!IsToken(token)) {
    return absl::InvalidArgumentError(
        "token: got none or one with other characters than printable ones, want that of a session");
  }
  absl::MutexLock lock(&mutex_);
  const bool has_another = !info_.token.empty() && info_.token != token;
  if (has_another && (state_ == State::kOpening || state_ == State::kOpen)) {
    return absl::FailedPreconditionError(
        "token: got another one than that of the client's session");
  }
  if (state_ == State::kNone || state_ == State::kFailed) {
    info_ = {.token = token, .linger = {}, .lease = {}, .max_bytes = 0};
    was_joined_ = true;
    StartKeeper();
  }
  return AwaitOpen(deadline);
}

absl::StatusOr<SessionInfo> ClientSession::AwaitOpen(SteadyTime deadline) {
  if (!mutex_.AwaitWithTimeout(absl::Condition(this, &ClientSession::HasOpened),
                               deadline - SteadyTime::Now())) {
    return absl::DeadlineExceededError(
        absl::StrCat("session: the server at ", address_, " did not open it in time"));
  }
  if (state_ == State::kFailed) return status_;
  return info_;
}

void ClientSession::StartKeeper() {
  // The previous keeper has ended: setting the state is its last action.
  if (keeper_.joinable()) keeper_.join();
  state_ = State::kOpening;
  keeper_ = std::thread([this] { Keep(); });
}

void ClientSession::Keep() {
  absl::Duration pause = kFirstPause;
  bool was_open = false;
  while (true) {
    bool has_opened = false;
    absl::Status status = ServeOnce(&has_opened);
    if (has_opened) pause = kFirstPause;
    was_open = was_open || has_opened;
    absl::MutexLock lock(&mutex_);
    if (is_closing_) return;
    // If the first attempt fails, the waiting callers get the error. A session that was open is
    // resumed.
    if (!was_open || !MayReturn(status)) {
      if (status.ok()) status = absl::UnavailableError("session: the server has ended its stream");
      status_ = status;
      state_ = State::kFailed;
      if (!was_joined_) info_.token.clear();
      return;
    }
    mutex_.AwaitWithTimeout(absl::Condition(&is_closing_), pause);
    if (is_closing_) return;
    pause = std::min(2 * pause, kLongestPause);
  }
}

absl::Status ClientSession::ServeOnce(bool* has_opened) {
  grpc::ClientContext context;
  AddToken(context);
  v1::OpenSessionRequest request;
  {
    absl::MutexLock lock(&mutex_);
    if (is_closing_) return absl::CancelledError("session: the client ends");
    request.set_token(info_.token);
    if (!info_.token.empty()) context.AddMetadata(kSessionKey, info_.token);
    stream_ = &context;
  }
  const auto reader = stub_->OpenSession(&context, request);
  v1::OpenSessionResponse response;
  while (reader->Read(&response)) {
    absl::MutexLock lock(&mutex_);
    *has_opened = true;
    info_ = {.token = response.token(),
             .linger = absl::Nanoseconds(response.linger_ns()),
             .lease = absl::Nanoseconds(response.lease_ns()),
             .max_bytes = response.max_session_bytes()};
    state_ = State::kOpen;
  }
  const absl::Status status = ToAbslStatus(reader->Finish(), context);
  absl::MutexLock lock(&mutex_);
  stream_ = nullptr;
  return status;
}

absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> ClientSession::Lanes(int count) {
  absl::MutexLock lock(&mutex_);
  const size_t wanted = static_cast<size_t>(count);
  if (lanes_.size() < wanted) {
    ClientOptions options = options_;
    options.channels = count - static_cast<int>(lanes_.size());
    ASSIGN_OR_RETURN(auto made, MakeChannels(address_, options));
    lanes_.insert(lanes_.end(), made.begin(), made.end());
  }
  return std::vector<std::shared_ptr<grpc::Channel>>(lanes_.begin(), lanes_.begin() + count);
}

void ClientSession::DeleteSoon(const std::string& handle) {
  auto deletion = std::make_unique<Deletion>(*this, handle);
  Deletion* const started = deletion.get();
  AddMetadata(started->context());
  {
    absl::MutexLock lock(&mutex_);
    deletions_.emplace(started, std::move(deletion));
  }
  started->Start(*stub_);
}

void ClientSession::EndDeletion(Deletion* deletion) {
  std::unique_ptr<Deletion> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended = std::move(deletions_.extract(deletion).mapped());
    ++ending_deletions_;
  }
  ended = nullptr;
  absl::MutexLock lock(&mutex_);
  --ending_deletions_;
}

void ClientSession::AwaitDeletions(SteadyTime deadline) const {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(this, &ClientSession::HasNoDeletions),
                          deadline - SteadyTime::Now());
}

}  // namespace gemmd
