// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "server/kserve/infer_call.h"
#include "server/system/mutex.h"
#include "server/wire/grpc_status.h"

namespace gemmd {
namespace {

// One request of the stream, from its message being read to its answer being written.
struct Exchange {
  explicit Exchange(const InferSetting& setting) : product(setting) {}

  InferExchange product;
  JobId job_id = 0;  // Guarded by the reactor's lock; 0 until the product is queued.
};

// What is to be written: the answer of a product, or a refusal, of which nothing else is kept.
struct Ended {
  std::shared_ptr<Exchange> exchange;
  grpc::ByteBuffer refusal;
};

// The state changes under the lock; what follows from it (read, write, finish) is decided there and
// done afterwards. At most one read and one write are under way, and the stream is finished only
// when no read, no write and no product is under way.
//
// gRPC holds the reactor until OnDone, and so does the callback of every product under way.
class InferStreamReactor final : public grpc::ServerBidiReactor<WireBytes, WireBytes>,
                                 public std::enable_shared_from_this<InferStreamReactor> {
 public:
  InferStreamReactor(const InferSetting& setting, grpc::CallbackServerContext& context)
      : setting_(setting),
        timing_{setting.times, setting.clock, Handler::kModelStreamInfer},
        context_(context),
        span_(StartSpan(context)),
        sending_(setting.watch, context) {}

  void Start() {
    const HandlerTimer timer = timing_.Begin();
    self_ = shared_from_this();
    Advance();
  }

  void OnReadDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    bool is_wanted = false;
    {
      MutexLock lock(&mutex_);
      is_wanted = ok && !is_broken_;
      if (!ok) reads_ended_ = true;
    }
    if (is_wanted) StartProduct();
    {
      MutexLock lock(&mutex_);
      is_reading_ = false;
    }
    Advance();
  }

  void OnWriteDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    sending_.End();
    std::shared_ptr<Exchange> answered;
    {
      MutexLock lock(&mutex_);
      answered.swap(written_);
      is_writing_ = false;
      if (!ok) is_broken_ = true;
    }
    Advance();
  }

  void OnCancel() override {
    const HandlerTimer timer = timing_.Begin();
    std::vector<JobId> jobs;
    {
      MutexLock lock(&mutex_);
      is_broken_ = true;
      for (const auto& exchange : running_) jobs.push_back(exchange->job_id);
    }
    setting_.runner.Cancel(jobs);
    Advance();
  }

  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    self_.reset();
  }

 private:
  void StartProduct() {
    const int64_t arrived_ns = setting_.clock.NowNs();
    const auto exchange = std::make_shared<Exchange>(setting_);
    {
      MutexLock lock(&mutex_);
      running_.insert(exchange);
    }
    absl::StatusOr<Arrival> arrival =
        ArrivalOf(context_, "ModelStreamInfer", arrived_ns, setting_.gate, setting_.clock);
    if (!arrival.ok()) {
      Answer(exchange, arrival.status());
      return;
    }
    if (span_) arrival->span = ChildOf(*span_);
    absl::StatusOr<JobId> id =
        exchange->product.Start(incoming_.buffer, *std::move(arrival),
                                [self = shared_from_this(), exchange](const absl::Status& status) {
                                  self->Answer(exchange, status);
                                });
    if (!id.ok()) {
      Answer(exchange, id.status());
      return;
    }
    bool is_cancelled = false;
    {
      MutexLock lock(&mutex_);
      exchange->job_id = *id;
      is_cancelled = is_broken_;  // OnCancel may have come before the id was known.
    }
    if (is_cancelled) setting_.runner.Cancel(*id);
  }

  void Answer(const std::shared_ptr<Exchange>& exchange, const absl::Status& status) {
    Ended ended;
    if (status.ok()) {
      exchange->product.LeaveQueue();
      ended.exchange = exchange;
    } else {
      ended.refusal = StreamedRefusal(exchange->product.id(), status);
    }
    {
      MutexLock lock(&mutex_);
      running_.erase(exchange);
      answers_.push_back(std::move(ended));
    }
    Advance();
  }

  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !is_reading_ && !reads_ended_ && !is_broken_ &&
           running_.size() + answers_.size() < kMostStreamedInfers &&
           answers_.size() < kMostWaitingInferAnswers;
  }

  void Advance() ABSL_LOCKS_EXCLUDED(mutex_) {
    bool shall_read = false;
    bool shall_finish = false;
    std::optional<Ended> to_write;
    std::deque<Ended> unwanted;
    bool is_broken = false;
    {
      MutexLock lock(&mutex_);
      is_broken = is_broken_;
      if (is_broken) unwanted.swap(answers_);
      if (!is_writing_ && !answers_.empty()) {
        to_write = std::move(answers_.front());
        answers_.pop_front();
        is_writing_ = true;
        // Its bytes stay in the account until they have left.
        written_ = to_write->exchange;
      }
      if (MayRead()) shall_read = is_reading_ = true;
      if (!is_reading_ && !is_writing_ && running_.empty() && answers_.empty() && !is_finished_) {
        shall_finish = is_finished_ = true;
      }
    }
    if (to_write) Write(*std::move(to_write));
    if (shall_read) StartRead(&incoming_);
    if (shall_finish) Finish(is_broken ? grpc::Status::CANCELLED : grpc::Status::OK);
  }

  void Write(Ended ended) {
    if (ended.exchange != nullptr) {
      answer_.buffer = ended.exchange->product.TakeStreamedAnswer();
    } else {
      answer_.buffer.Swap(&ended.refusal);
    }
    sending_.Begin(static_cast<int64_t>(answer_.buffer.Length()));
    StartWrite(&answer_);
  }

  const InferSetting& setting_;
  const HandlerTiming timing_;
  grpc::CallbackServerContext& context_;
  const std::optional<TraceSpan> span_;  // The span of the stream, parent of its products' spans.
  SendWatch::Call sending_;
  std::shared_ptr<InferStreamReactor> self_;
  WireBytes incoming_;  // The message that is read, its reader's alone.
  WireBytes answer_;    // The message that is written.

  Mutex mutex_;
  absl::flat_hash_set<std::shared_ptr<Exchange>> running_ ABSL_GUARDED_BY(mutex_);
  std::deque<Ended> answers_ ABSL_GUARDED_BY(mutex_);  // To be written.
  std::shared_ptr<Exchange> written_ ABSL_GUARDED_BY(mutex_);
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;   // Until what was read is started.
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;  // Closed by the client.
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;    // Cancelled, or a write failed.
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerBidiReactor<WireBytes, WireBytes>* StartInferStream(
    const InferSetting& setting, grpc::CallbackServerContext& context) {
  const auto reactor = std::make_shared<InferStreamReactor>(setting, context);
  reactor->Start();
  return reactor.get();
}

}  // namespace gemmd
