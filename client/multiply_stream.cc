// SPDX-License-Identifier: Apache-2.0
#include "gemmd/multiply_stream.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/channel.h"
#include "client/connections.h"
#include "client/product_call.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/client_callback.h"

namespace gemmd {
namespace {

using Stub = grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::MultiplyStreamResponse>;

constexpr char kMultiplyStream[] = "/gemmd.v1.Gemm/MultiplyStream";

// How long Send waits for another thread to receive an answer, if it cannot send before that.
constexpr absl::Duration kReceiverPatience = absl::Seconds(1);

int64_t BytesOf(const StreamAnswer& answer) {
  return answer.response.ok() ? static_cast<int64_t>((*answer.response)->d().data().size()) : 0;
}

StreamAnswer ToStreamAnswer(v1::MultiplyStreamAnswer& received) {
  StreamAnswer answer;
  answer.request_id = std::move(*received.mutable_request_id());
  if (received.has_response()) {
    answer.response =
        std::make_shared<v1::MultiplyResponse>(std::move(*received.mutable_response()));
  } else if (received.has_error()) {
    answer.response = ToAbslStatus(received.error());
  } else {
    answer.response =
        absl::DataLossError("stream: got an answer with neither a response nor an error");
  }
  return answer;
}

}  // namespace

// The call behind a stream. While a message is being written, further products collect and then go
// in one message. gRPC delivers OnDone, the last reaction, when no operation and no hold remains.
// So one hold represents the right of other threads to start writes; it is removed when reading has
// ended and no write is in progress. Destroyed after OnDone, on a user's thread (connections.h says
// why).
class MultiplyStream::Reactor
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, v1::MultiplyStreamResponse> {
 public:
  static std::unique_ptr<Reactor> Start(const std::shared_ptr<grpc::Channel>& channel,
                                        SteadyTime deadline, const std::string& traceparent,
                                        const std::function<void(grpc::ClientContext&)>& prepare) {
    auto reactor = std::make_unique<Reactor>(channel, deadline, traceparent);
    prepare(reactor->context_);
    reactor->stub_.PrepareBidiStreamingCall(&reactor->context_, kMultiplyStream, {}, reactor.get());
    reactor->AddHold();
    reactor->StartRead(&reactor->incoming_);
    reactor->StartCall();
    return reactor;
  }

  Reactor(std::shared_ptr<grpc::Channel> channel, SteadyTime deadline, std::string traceparent)
      : channel_(std::move(channel)),
        deadline_(deadline),
        traceparent_(std::move(traceparent)),
        stub_(channel_) {}

  // A product that names restorable tensors is kept until its answer is received; null: none.
  using Kept = std::shared_ptr<const v1::MultiplyRequest>;
  absl::Status Send(const v1::MultiplyRequest& request, Kept kept) ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseSending() ABSL_LOCKS_EXCLUDED(mutex_);
  // With the product, if it was kept.
  std::optional<StreamAnswer> Receive(Kept& kept) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends a refused product as a call of its own, which restores its tensors.
  absl::StatusOr<std::shared_ptr<v1::MultiplyResponse>> SendAlone(
      const v1::MultiplyRequest& request, const std::shared_ptr<TensorOwner>& owner,
      const absl::Status& refusal) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Finish() ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override { WriteEnded(ok); }
  void OnWritesDoneDone(bool ok) override { WriteEnded(ok); }
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Step { kNone, kWrite, kWritesDone };

  void WriteEnded(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  // The next write; none while a write is in progress.
  Step NextStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(Step step);
  // Waits until the part can be queued, or never can be. Errors: ResourceExhausted if that requires
  // an answer to be received, and nobody receives one.
  absl::Status AwaitRoom(const std::string& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a pause of reading that is no longer needed; returns true if the caller must then read.
  bool EndsPause() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status KeptError() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for the end of a stream that takes no more products, and returns its status. The end
  // comes after the last answer, which may have to be received first.
  absl::Status EndedStatus() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakesNoMore() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return reading_ended_ || write_failed_;
  }
  bool CanReceive() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !answers_.empty() || is_done_;
  }
  bool IsDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_done_; }
  bool IsDoneOrPaused() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return is_done_ || is_paused_;
  }
  // Once Finish waits for the end, every answer is kept.
  bool KeepsEnough() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return kept_bytes_ >= kMaxUnreceivedBytes && !is_finishing_;
  }

  Kept TakeKept(const std::string& request_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<grpc::Channel> channel_;
  const SteadyTime deadline_;
  const std::string traceparent_;
  Stub stub_;
  grpc::ClientContext context_;
  v1::MultiplyStreamResponse incoming_;  // Filled by the read in progress.
  grpc::ByteBuffer outgoing_;            // Read by the write in progress.

  absl::Mutex mutex_;
  RequestQueue queue_ ABSL_GUARDED_BY(mutex_);
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool sending_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool writes_done_ ABSL_GUARDED_BY(mutex_) = false;  // WritesDone was sent.
  bool reading_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_paused_ ABSL_GUARDED_BY(mutex_) = false;  // No read is in progress.
  bool is_finishing_ ABSL_GUARDED_BY(mutex_) = false;
  int unreceived_ ABSL_GUARDED_BY(mutex_) = 0;  // Products sent whose answers were not received.
  int64_t received_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // Bytes in `answers_`.
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::deque<StreamAnswer> answers_ ABSL_GUARDED_BY(mutex_);
  // By request_id. Products that share an id are not sent again, because their answers cannot be
  // told apart.
  absl::flat_hash_map<std::string, std::vector<Kept>> kept_ ABSL_GUARDED_BY(mutex_);
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<std::shared_ptr<ProductCall>> alone_ ABSL_GUARDED_BY(mutex_);
};

absl::Status MultiplyStream::Reactor::Send(const v1::MultiplyRequest& request, Kept kept) {
  std::string part = RequestQueue::PartOf(request);
  Step step = Step::kNone;
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status room = AwaitRoom(part); !room.ok()) return room;
    if (sending_closed_)
      return absl::FailedPreconditionError("stream: got Send after CloseSending");
    if (TakesNoMore()) return EndedStatus();
    if (unreceived_ >= kMaxUnreceived) {
      return absl::ResourceExhaustedError(
          absl::StrCat("stream: ", unreceived_,
                       " products were sent whose answers were not received, "
                       "the limit: call Receive first"));
    }
    ++unreceived_;
    if (kept != nullptr) kept_[request.request_id()].push_back(std::move(kept));
    queue_.Add(std::move(part));
    step = NextStep();
  }
  Do(step);
  return absl::OkStatus();
}

absl::Status MultiplyStream::Reactor::AwaitRoom(const std::string& part) {
  const auto can_go = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return queue_.Takes(part) || sending_closed_ || TakesNoMore();
  };
  const auto can_go_or_keeps_enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return can_go() || KeepsEnough();
  };
  while (true) {
    mutex_.Await(absl::Condition(&can_go_or_keeps_enough));
    if (can_go()) return absl::OkStatus();
    const int64_t received = received_;
    const auto changes = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return can_go() || received_ != received;
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&changes), kReceiverPatience)) return KeptError();
  }
}

absl::Status MultiplyStream::Reactor::KeptError() const {
  return absl::ResourceExhaustedError(
      absl::StrCat("stream: ", kept_bytes_,
                   " bytes of answers were not received, the limit: call Receive first"));
}

MultiplyStream::Reactor::Step MultiplyStream::Reactor::NextStep() {
  if (is_writing_ || TakesNoMore() || writes_done_) return Step::kNone;
  if (!queue_.empty()) {
    outgoing_ = queue_.Take();
    is_writing_ = true;
    return Step::kWrite;
  }
  if (!sending_closed_) return Step::kNone;
  writes_done_ = is_writing_ = true;
  return Step::kWritesDone;
}

void MultiplyStream::Reactor::Do(Step step) {
  if (step == Step::kWrite) StartWrite(&outgoing_);
  if (step == Step::kWritesDone) StartWritesDone();
}

absl::Status MultiplyStream::Reactor::EndedStatus() {
  mutex_.Await(absl::Condition(this, &Reactor::IsDoneOrPaused));
  if (!is_done_) return KeptError();
  return status_.ok() ? absl::UnavailableError("stream: the server has ended it") : status_;
}

void MultiplyStream::Reactor::CloseSending() {
  Step step = Step::kNone;
  {
    absl::MutexLock lock(&mutex_);
    sending_closed_ = true;
    step = NextStep();
  }
  Do(step);
}

bool MultiplyStream::Reactor::EndsPause() {
  return !KeepsEnough() && std::exchange(is_paused_, false);
}

MultiplyStream::Reactor::Kept MultiplyStream::Reactor::TakeKept(const std::string& request_id) {
  const auto found = kept_.find(request_id);
  if (found == kept_.end()) return nullptr;
  std::vector<Kept>& products = found->second;
  Kept kept = std::move(products.back());
  if (products.size() == 1) {
    kept_.erase(found);
    return kept;
  }
  products.pop_back();
  std::fill(products.begin(), products.end(), nullptr);
  return nullptr;
}

absl::StatusOr<std::shared_ptr<v1::MultiplyResponse>> MultiplyStream::Reactor::SendAlone(
    const v1::MultiplyRequest& request, const std::shared_ptr<TensorOwner>& owner,
    const absl::Status& refusal) {
  const auto call = std::make_shared<ProductCall>(channel_);
  {
    const SessionUse use(owner);
    if (use.session() == nullptr) return refusal;
    LentRequest lent = {.message = request};
    std::string token =
        use.session()->Prepare(call->context(), deadline_ - SteadyTime::Now(), traceparent_);
    auto retry = RetryOf(*use.session(), lent, std::move(token), channel_, deadline_, traceparent_);
    call->Start(std::move(lent), {}, std::move(retry));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (is_cancelled_) return refusal;
    alone_.insert(call);
  }
  auto response = call->WaitForMessage();
  absl::MutexLock lock(&mutex_);
  alone_.erase(call);
  if (!response.ok()) return response.status();
  return std::make_shared<v1::MultiplyResponse>(*std::move(response));
}

void MultiplyStream::Reactor::Cancel() {
  std::vector<std::shared_ptr<ProductCall>> alone;
  {
    absl::MutexLock lock(&mutex_);
    is_cancelled_ = true;
    alone.assign(alone_.begin(), alone_.end());
  }
  // Not under the lock, which reactions take.
  context_.TryCancel();
  for (const auto& call : alone) call->Cancel();
}

std::optional<StreamAnswer> MultiplyStream::Reactor::Receive(Kept& kept) {
  std::optional<StreamAnswer> answer;
  bool read = false;
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Reactor::CanReceive));
    if (answers_.empty()) return std::nullopt;
    answer = std::move(answers_.front());
    answers_.pop_front();
    --unreceived_;
    ++received_;
    kept_bytes_ -= BytesOf(*answer);
    kept = TakeKept(answer->request_id);
    read = EndsPause();
  }
  if (read) StartRead(&incoming_);
  return answer;
}

absl::Status MultiplyStream::Reactor::Finish() {
  CloseSending();
  bool read = false;
  {
    absl::MutexLock lock(&mutex_);
    is_finishing_ = true;
    read = EndsPause();
  }
  if (read) StartRead(&incoming_);
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &Reactor::IsDone));
  return status_;
}

void MultiplyStream::Reactor::OnReadDone(bool ok) {
  if (ok) {
    std::vector<StreamAnswer> answers;
    answers.reserve(static_cast<size_t>(incoming_.answers_size()));
    for (v1::MultiplyStreamAnswer& answer : *incoming_.mutable_answers()) {
      answers.push_back(ToStreamAnswer(answer));
    }
    bool read = false;
    {
      absl::MutexLock lock(&mutex_);
      for (const StreamAnswer& answer : answers) kept_bytes_ += BytesOf(answer);
      std::move(answers.begin(), answers.end(), std::back_inserter(answers_));
      read = !KeepsEnough();
      is_paused_ = !read;
    }
    if (read) StartRead(&incoming_);
    return;
  }
  bool release = false;
  {
    absl::MutexLock lock(&mutex_);
    reading_ended_ = true;
    release = !is_writing_;
  }
  if (release) RemoveHold();
}

void MultiplyStream::Reactor::WriteEnded(bool ok) {
  Step step = Step::kNone;
  bool release = false;
  {
    absl::MutexLock lock(&mutex_);
    is_writing_ = false;
    write_failed_ = write_failed_ || !ok;
    step = NextStep();
    release = reading_ended_;
  }
  Do(step);
  if (release) RemoveHold();
}

void MultiplyStream::Reactor::OnDone(const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  status_ = ToAbslStatus(status, context_);
  is_done_ = true;
}

MultiplyStream::MultiplyStream(std::unique_ptr<Reactor> reactor, std::shared_ptr<TensorOwner> owner)
    : reactor_(std::move(reactor)), owner_(std::move(owner)) {}

absl::StatusOr<MultiplyResult> StreamAnswer::result() const {
  if (!response.ok()) return response.status();
  return MultiplyResult::FromResponse(*response);
}

MultiplyStream::~MultiplyStream() {
  reactor_->Cancel();
  (void)reactor_->Finish();
}

absl::Status MultiplyStream::Send(const v1::MultiplyRequest& request) {
  std::optional<ClientSession::TranslatedProduct> current;
  if (NamesTensors(request)) {
    const SessionUse use(owner_);
    if (use.session() != nullptr) current = use.session()->Translated(request);
  }
  if (!current.has_value()) return reactor_->Send(request, nullptr);
  return reactor_->Send(*current->request, current->uses.empty() ? nullptr : current->request);
}
absl::Status MultiplyStream::Send(const Operand& a, const Operand& b,
                                  const ProductOptions& options) {
  const auto request = BuildRequest(a, b, options);
  return request.ok() ? Send(*request) : request.status();
}
void MultiplyStream::CloseSending() { reactor_->CloseSending(); }
std::optional<StreamAnswer> MultiplyStream::Receive() {
  std::shared_ptr<const v1::MultiplyRequest> kept;
  std::optional<StreamAnswer> answer = reactor_->Receive(kept);
  if (kept != nullptr && IsLoss(answer->response.status())) {
    answer->response = reactor_->SendAlone(*kept, owner_, answer->response.status());
  }
  return answer;
}
absl::Status MultiplyStream::Finish() { return reactor_->Finish(); }
void MultiplyStream::Cancel() { reactor_->Cancel(); }

std::unique_ptr<MultiplyStream> Client::OpenMultiplyStream(const CallOptions& options) {
  const auto prepare = [&](grpc::ClientContext& context) { state_->Prepare(context, options); };
  return std::unique_ptr<MultiplyStream>(new MultiplyStream(
      MultiplyStream::Reactor::Start(state_->Next().channel,
                                     SteadyTime::Now() + options.timeout.value_or(state_->timeout),
                                     options.traceparent, prepare),
      state_->session->owner()));
}

}  // namespace gemmd
