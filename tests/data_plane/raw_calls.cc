// SPDX-License-Identifier: Apache-2.0
#include "tests/data_plane/raw_calls.h"

#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "tests/data_plane/bare_grpc.h"
#include "tests/data_plane/measure.h"

namespace gemmd {
namespace {

void Name(grpc::ClientContext& context, const RawTarget& target) {
  if (!target.session.empty()) context.AddMetadata("gemmd-session", target.session);
}

void Require(const grpc::Status& status) {
  if (!status.ok()) Fail("call: " + status.error_message());
}

// Unary calls; the end of each begins the next one.
class UnaryLoop {
 public:
  UnaryLoop(const RawTarget& target, std::vector<std::unique_ptr<grpc::GenericStub>>& stubs)
      : target_(target), stubs_(stubs) {}

  double Run(int in_flight, double seconds) ABSL_LOCKS_EXCLUDED(mutex_) {
    const double start = NowSeconds();
    until_ = start + seconds;
    {
      absl::MutexLock lock(&mutex_);
      running_ = in_flight;
    }
    for (int i = 0; i < in_flight; ++i) Start(static_cast<size_t>(i));
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &UnaryLoop::IsOver));
    return static_cast<double>(answers_.load()) / (NowSeconds() - start);
  }

 private:
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer answer;
  };

  void Start(size_t number) {
    auto* const call = new Call;
    Name(call->context, target_);
    const grpc::ByteBuffer& request = target_.requests[number % target_.requests.size()];
    stubs_[number % stubs_.size()]->UnaryCall(&call->context, target_.path, {}, &request,
                                              &call->answer,
                                              [this, call, number](const grpc::Status& status) {
                                                delete call;
                                                Require(status);
                                                answers_.fetch_add(1, std::memory_order_relaxed);
                                                End(number);
                                              });
  }
  void End(size_t number) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (NowSeconds() < until_) return Start(number);
    absl::MutexLock lock(&mutex_);
    --running_;
  }
  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ == 0; }

  const RawTarget& target_;
  std::vector<std::unique_ptr<grpc::GenericStub>>& stubs_;
  std::atomic<int64_t> answers_ = 0;
  double until_ = 0;
  absl::Mutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The number of products that a message answers; all of them must have been computed.
int CountAnswers(const RawTarget& target, grpc::ByteBuffer& message) {
  if (!target.is_checked) return target.products;
  v1::MultiplyStreamResponse response;
  Require(grpc::SerializationTraits<v1::MultiplyStreamResponse>::Deserialize(&message, &response));
  for (const v1::MultiplyStreamAnswer& answer : response.answers()) {
    if (!answer.has_response()) Fail("stream: " + answer.error().message());
  }
  return response.answers_size();
}

class StreamLoop final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  StreamLoop(const RawTarget& target, grpc::GenericStub& stub, int in_flight, double until)
      : target_(target), most_(in_flight), until_(until) {
    Name(context_, target_);
    stub.PrepareBidiStreamingCall(&context_, target_.path, {}, this);
    StartRead(&incoming_);
    Proceed();
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return;
    {
      absl::MutexLock lock(&mutex_);
      is_writing_ = false;
    }
    Proceed();
  }
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!ok) return;
    const int answers = CountAnswers(target_, incoming_);
    {
      absl::MutexLock lock(&mutex_);
      in_flight_ -= answers;
      answers_ += answers;
    }
    incoming_.Clear();
    StartRead(&incoming_);
    Proceed();
  }
  void OnDone(const grpc::Status& status) override {
    Require(status);
    done_.Notify();
  }

  int64_t Wait() ABSL_LOCKS_EXCLUDED(mutex_) {
    done_.WaitForNotification();
    absl::MutexLock lock(&mutex_);
    return answers_;
  }

 private:
  void Proceed() ABSL_LOCKS_EXCLUDED(mutex_) {
    bool is_to_close = false;
    {
      absl::MutexLock lock(&mutex_);
      if (is_writing_ || is_closed_) return;
      is_to_close = is_closed_ = NowSeconds() >= until_;
      if (!is_to_close && in_flight_ + target_.products > most_) return;
      is_writing_ = true;
      in_flight_ += target_.products;
    }
    if (is_to_close) return StartWritesDone();
    outgoing_ = target_.requests[next_++ % target_.requests.size()];
    StartWrite(&outgoing_);
  }

  const RawTarget& target_;
  const int most_;
  const double until_;
  grpc::ClientContext context_;
  size_t next_ = 0;
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;
  absl::Notification done_;

  absl::Mutex mutex_;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t answers_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

grpc::ByteBuffer Serialized(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

RawCalls::RawCalls(RawTarget target, int connections) : target_(std::move(target)) {
  for (int i = 0; i < connections; ++i) {
    stubs_.push_back(std::make_unique<grpc::GenericStub>(OwnChannel(target_.address)));
  }
}

RawCalls::~RawCalls() = default;

double RawCalls::UnaryRate(int in_flight, double seconds) {
  return UnaryLoop(target_, stubs_).Run(in_flight, seconds);
}

double RawCalls::StreamRate(int in_flight, double seconds) {
  const double start = NowSeconds();
  std::vector<std::unique_ptr<StreamLoop>> loops;
  const int each = in_flight / static_cast<int>(stubs_.size());
  for (const auto& stub : stubs_) {
    loops.push_back(std::make_unique<StreamLoop>(target_, *stub, each, start + seconds));
  }
  int64_t answers = 0;
  for (const auto& loop : loops) answers += loop->Wait();
  return static_cast<double>(answers) / (NowSeconds() - start);
}

std::vector<double> RawCalls::Latencies(int calls) {
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) {
    seconds.push_back(SecondsOf([&] {
      grpc::ClientContext context;
      Name(context, target_);
      grpc::ByteBuffer answer;
      absl::Notification done;
      const grpc::ByteBuffer& request =
          target_.requests[static_cast<size_t>(i) % target_.requests.size()];
      stubs_[0]->UnaryCall(&context, target_.path, {}, &request, &answer,
                           [&](const grpc::Status& status) {
                             Require(status);
                             done.Notify();
                           });
      done.WaitForNotification();
    }));
  }
  return seconds;
}

}  // namespace gemmd
