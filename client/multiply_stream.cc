// SPDX-License-Identifier: Apache-2.0
#include "gemmd/multiply_stream.h"

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/connections.h"
#include "client/status_conversion.h"
#include "grpcpp/support/client_callback.h"

namespace gemmd {

// The call behind a stream. gRPC delivers OnDone, the last reaction, when every operation and every
// hold is gone, so one hold stands for the right of other threads to start writes; it goes when the
// reading has ended and no write is under way. Destroyed after OnDone and on a thread of the user
// (connections.h says why).
class MultiplyStream::Reactor
    : public grpc::ClientBidiReactor<v1::MultiplyRequest, v1::MultiplyStreamResponse> {
 public:
  static std::unique_ptr<Reactor> Start(v1::Gemm::Stub& stub,
                                        const std::function<void(grpc::ClientContext&)>& prepare) {
    auto reactor = std::make_unique<Reactor>();
    prepare(reactor->context_);
    stub.async()->MultiplyStream(&reactor->context_, reactor.get());
    reactor->AddHold();
    reactor->StartRead(&reactor->incoming_);
    reactor->StartCall();
    return reactor;
  }

  absl::Status Send(const v1::MultiplyRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseSending() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<StreamAnswer> Receive() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Finish() ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override { WriteEnded(ok); }
  void OnWritesDoneDone(bool ok) override { WriteEnded(ok); }
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void WriteEnded(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for the end of a stream that takes no more products and says why.
  absl::Status EndedStatus() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CanWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !is_writing_ || reading_ended_;
  }
  bool HasWritten() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !is_writing_; }
  bool CanReceive() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !answers_.empty() || is_done_;
  }
  bool IsDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_done_; }

  grpc::ClientContext context_;
  v1::MultiplyStreamResponse incoming_;  // Filled by the read under way.

  absl::Mutex mutex_;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool sending_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
  int unreceived_ ABSL_GUARDED_BY(mutex_) = 0;  // Sent, with an answer that was not received.
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::deque<StreamAnswer> answers_ ABSL_GUARDED_BY(mutex_);
};

absl::Status MultiplyStream::Reactor::Send(const v1::MultiplyRequest& request) {
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Reactor::CanWrite));
    if (sending_closed_)
      return absl::FailedPreconditionError("stream: got Send after CloseSending");
    if (reading_ended_) return EndedStatus();
    if (unreceived_ >= kMaxUnreceived) {
      return absl::ResourceExhaustedError(
          absl::StrCat("stream: ", unreceived_,
                       " products were sent whose answers were not received, "
                       "the limit: call Receive first"));
    }
    ++unreceived_;
    is_writing_ = true;
  }
  StartWrite(&request);
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &Reactor::HasWritten));
  return write_failed_ ? EndedStatus() : absl::OkStatus();
}

absl::Status MultiplyStream::Reactor::EndedStatus() {
  mutex_.Await(absl::Condition(this, &Reactor::IsDone));
  return status_.ok() ? absl::UnavailableError("stream: the server has ended it") : status_;
}

void MultiplyStream::Reactor::CloseSending() {
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Reactor::CanWrite));
    if (sending_closed_ || reading_ended_) return;
    sending_closed_ = true;
    is_writing_ = true;
  }
  StartWritesDone();
}

std::optional<StreamAnswer> MultiplyStream::Reactor::Receive() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &Reactor::CanReceive));
  if (answers_.empty()) return std::nullopt;
  StreamAnswer answer = std::move(answers_.front());
  answers_.pop_front();
  --unreceived_;
  return answer;
}

absl::Status MultiplyStream::Reactor::Finish() {
  CloseSending();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &Reactor::IsDone));
  return status_;
}

void MultiplyStream::Reactor::OnReadDone(bool ok) {
  if (ok) {
    StreamAnswer answer;
    answer.request_id = std::move(*incoming_.mutable_request_id());
    if (incoming_.has_response()) {
      answer.result = std::move(*incoming_.mutable_response());
    } else if (incoming_.has_error()) {
      answer.result = ToAbslStatus(incoming_.error());
    } else {
      answer.result =
          absl::DataLossError("stream: got an answer with neither a response nor an error");
    }
    {
      absl::MutexLock lock(&mutex_);
      answers_.push_back(std::move(answer));
    }
    StartRead(&incoming_);
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
  bool release = false;
  {
    absl::MutexLock lock(&mutex_);
    is_writing_ = false;
    write_failed_ = write_failed_ || !ok;
    release = reading_ended_;
  }
  if (release) RemoveHold();
}

void MultiplyStream::Reactor::OnDone(const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  status_ = ToAbslStatus(status, context_);
  is_done_ = true;
}

MultiplyStream::MultiplyStream(std::unique_ptr<Reactor> reactor) : reactor_(std::move(reactor)) {}

MultiplyStream::~MultiplyStream() {
  reactor_->Cancel();
  (void)reactor_->Finish();
}

absl::Status MultiplyStream::Send(const v1::MultiplyRequest& request) {
  return reactor_->Send(request);
}
void MultiplyStream::CloseSending() { reactor_->CloseSending(); }
std::optional<StreamAnswer> MultiplyStream::Receive() { return reactor_->Receive(); }
absl::Status MultiplyStream::Finish() { return reactor_->Finish(); }
void MultiplyStream::Cancel() { reactor_->Cancel(); }

std::unique_ptr<MultiplyStream> Client::OpenMultiplyStream(const CallOptions& options) {
  const auto prepare = [&](grpc::ClientContext& context) { state_->Prepare(context, options); };
  return std::unique_ptr<MultiplyStream>(
      new MultiplyStream(MultiplyStream::Reactor::Start(*state_->Next().gemm, prepare)));
}

}  // namespace gemmd
