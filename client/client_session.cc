// SPDX-License-Identifier: Apache-2.0
#include "client/client_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
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

// The text of a refusal once the client's session, with its tensors, was lost.
absl::Status WithAdvice(const absl::Status& refusal) {
  return absl::Status(refusal.code(),
                      absl::StrCat(refusal.message(),
                                   "; the server has lost an earlier session of this client, with "
                                   "its tensors: put them again, or put them with "
                                   "PutOptions::restorable, and the client does so by itself"));
}

}  // namespace

SessionUse::SessionUse(std::shared_ptr<TensorOwner> owner) : owner_(std::move(owner)) {
  if (owner_ == nullptr) return;
  absl::MutexLock lock(&owner_->mutex);
  session_ = owner_->session;
  if (session_ != nullptr) ++owner_->users;
}

SessionUse::~SessionUse() {
  if (session_ == nullptr) return;
  absl::MutexLock lock(&owner_->mutex);
  --owner_->users;
}

bool IsSessionRefusal(const absl::Status& status) {
  return absl::IsUnauthenticated(status) &&
         absl::StartsWith(status.message(), absl::StrCat(kSessionKey, ":"));
}

bool IsLoss(const absl::Status& status) {
  return IsSessionRefusal(status) || absl::IsNotFound(status);
}

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

void ClientSession::BeginClosing() {
  absl::MutexLock lock(&mutex_);
  is_closing_ = true;
}

ClientSession::~ClientSession() {
  BeginClosing();
  {
    absl::MutexLock lock(&owner_->mutex);
    owner_->session = nullptr;
    const auto is_unused = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_->mutex) {
      return owner_->users == 0;
    };
    owner_->mutex.Await(absl::Condition(&is_unused));
  }
  std::thread keeper;
  std::thread worker;
  {
    absl::MutexLock lock(&mutex_);
    is_work_over_ = true;
    worker.swap(worker_);
    if (stream_ != nullptr) stream_->TryCancel();
    keeper.swap(keeper_);
    // Waits for requested deletions, except those that the server does not answer.
    mutex_.AwaitWithTimeout(absl::Condition(this, &ClientSession::HasNoDeletions),
                            absl::Seconds(1));
    for (const auto& [deletion, owned] : deletions_) deletion->context().TryCancel();
    mutex_.Await(absl::Condition(this, &ClientSession::HasNoDeletions));
  }
  if (keeper.joinable()) keeper.join();
  if (worker.joinable()) worker.join();
}

void ClientSession::RunSoon(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  work_.push_back(std::move(work));
  if (!worker_.joinable()) worker_ = std::thread([this] { Work(); });
}

void ClientSession::Work() {
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &ClientSession::HasWork));
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

std::string ClientSession::token() const {
  absl::MutexLock lock(&mutex_);
  return info_.token;
}

std::string ClientSession::AddMetadata(grpc::ClientContext& context) const {
  AddToken(context);
  std::string current = token();
  if (!current.empty()) context.AddMetadata(kSessionKey, current);
  return current;
}

std::string ClientSession::Prepare(grpc::ClientContext& context, absl::Duration timeout,
                                   const std::string& traceparent) const {
  context.set_deadline(DeadlineAfter(timeout));
  // gRPC aborts the process if metadata contains invalid characters.
  const bool can_be_sent = std::all_of(traceparent.begin(), traceparent.end(),
                                       [](unsigned char c) { return c > ' ' && c <= '~'; });
  if (!traceparent.empty() && can_be_sent) context.AddMetadata("traceparent", traceparent);
  return AddMetadata(context);
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
        "token: got none, or one with unprintable characters, want that of a session");
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

absl::StatusOr<SessionInfo> ClientSession::Renew(const std::string& refused, SteadyTime deadline) {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ == State::kOpen && info_.token == refused) {
      // The server decides: its answer to the same token keeps the session or ends it.
      state_ = State::kOpening;
      is_doubted_ = true;
      if (stream_ != nullptr) stream_->TryCancel();
    }
    if (state_ == State::kOpening) AwaitOpen(deadline).IgnoreError();
  }
  return Open(deadline);
}

absl::StatusOr<SessionInfo> ClientSession::AwaitOpen(SteadyTime deadline) {
  if (!mutex_.AwaitWithTimeout(absl::Condition(this, &ClientSession::HasOpened),
                               deadline - SteadyTime::Now())) {
    return absl::DeadlineExceededError(
        absl::StrCat("session: the server at ", address_, " did not open it in time"));
  }
  if (is_closing_) return absl::CancelledError("session: the client ends");
  if (state_ == State::kFailed) return status_;
  return info_;
}

void ClientSession::StartKeeper() {
  // The previous keeper has ended: setting the state is its last action.
  if (keeper_.joinable()) keeper_.join();
  state_ = State::kOpening;
  is_doubted_ = false;
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
      has_lost_one_ = has_lost_one_ || was_open;
      if (!was_joined_) info_.token.clear();
      return;
    }
    mutex_.AwaitWithTimeout(absl::Condition(this, &ClientSession::IsHurried), pause);
    if (is_closing_) return;
    is_doubted_ = false;
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

absl::StatusOr<v1::TensorInfo> ClientSession::Describe(const v1::TensorRef& tensor,
                                                       SteadyTime deadline) {
  grpc::ClientContext context;
  Prepare(context, deadline - SteadyTime::Now(), "");
  v1::TensorInfo info;
  const grpc::Status status = stub_->Describe(&context, tensor, &info);
  if (!status.ok()) return ToAbslStatus(status, context);
  return info;
}

std::vector<RestorableTensors::Use> ClientSession::Translate(v1::MultiplyRequest& request) {
  if (HasTensorAsD(request)) {
    restorable_.Overwrite(*request.mutable_d()->mutable_tensor()->mutable_tensor());
  }
  return restorable_.Translate(TensorRefsOf(request));
}

std::optional<ClientSession::TranslatedProduct> ClientSession::Translated(
    const v1::MultiplyRequest& request) {
  if (!NamesTensors(request) || restorable_.IsEmpty()) return std::nullopt;
  auto current = std::make_shared<v1::MultiplyRequest>(request);
  std::vector<RestorableTensors::Use> uses = Translate(*current);
  return TranslatedProduct{.request = std::move(current), .uses = std::move(uses)};
}

absl::Status ClientSession::Restore(const absl::Status& refusal, SentTensors& sent,
                                    SteadyTime deadline) {
  const bool is_session_lost = IsSessionRefusal(refusal);
  if (!IsLoss(refusal) || sent.restorations_left-- == 0) return refusal;
  if (sent.uses.empty() && !sent.is_upload) {
    absl::MutexLock lock(&mutex_);
    const bool is_of_tensor = is_session_lost || absl::StrContains(refusal.message(), "tensor");
    return has_lost_one_ && is_of_tensor ? WithAdvice(refusal) : refusal;
  }
  const auto restore = [&]() -> absl::StatusOr<bool> {
    if (is_session_lost) {
      const auto renewed = Renew(sent.token, deadline);
      // A session that was joined by its token is lost for good.
      if (!renewed.ok() && !MayReturn(renewed.status())) return false;
      if (!renewed.ok()) return renewed.status();
    }
    const auto describe = [&](const v1::TensorRef& ref) { return Describe(ref, deadline); };
    const auto put = [&](const RestorableTensors::Source& source) {
      const SteadyTime now = SteadyTime::Now();
      return RunUpload(*this, {.begin = source.begin,
                               .source = {.data = source.data, .tail = source.tail},
                               .connections = source.connections,
                               .terms = {.progress = {},
                                         .timeout = deadline - now,
                                         .entry = now,
                                         .patience = options_.timeout}});
    };
    bool may_succeed = is_session_lost;
    for (const RestorableTensors::Use& use : sent.uses) {
      ASSIGN_OR_RETURN(const bool is_restored,
                       restorable_.Restore(use, deadline, {.describe = describe, .put = put}));
      may_succeed = may_succeed || is_restored;
    }
    return may_succeed;
  };
  const auto may_succeed = restore();
  if (may_succeed.ok()) return *may_succeed ? absl::OkStatus() : refusal;
  return absl::Status(
      may_succeed.status().code(),
      absl::StrCat(may_succeed.status().message(), "; this was to ",
                   sent.is_upload ? "open another session" : "restore a tensor", " after ",
                   absl::StatusCodeToString(refusal.code()), ": ", refusal.message()));
}

void ClientSession::DeleteSoon(const std::string& handle) {
  v1::TensorRef ref;
  ref.set_handle(handle);
  const std::string current = restorable_.Forget(ref);
  auto deletion = std::make_unique<Deletion>(*this, current.empty() ? handle : current);
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
