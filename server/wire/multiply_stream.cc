// SPDX-License-Identifier: Apache-2.0
#include "server/wire/multiply_stream.h"

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/system/mutex.h"
#include "server/wire/gemm_service.h"
#include "server/wire/product_exchange.h"

namespace gemmd {
namespace {

// One request of the stream, from being read to its answer being written.
struct Exchange {
  WireBytes request;  // Until it is parsed.
  WireBytes answer;   // From the end of its product.
  ProductExchange product;
  JobId job_id = 0;  // Guarded by the reactor's lock; 0 until the product is queued.
};

// The state changes under the lock; what follows from it (read, write, finish) is decided there and
// done afterwards. At most one read and one write are under way, and the stream is finished only
// when no read, no write and no product is under way.
//
// gRPC holds the reactor until OnDone, and so does the callback of every product under way.
class MultiplyStreamReactor final : public grpc::ServerBidiReactor<WireBytes, WireBytes>,
                                    public std::enable_shared_from_this<MultiplyStreamReactor> {
 public:
  MultiplyStreamReactor(ProductRunner& runner, ReceiveQuota& quota, SendWatch& watch,
                        HandlerTimes& times, grpc::CallbackServerContext& context,
                        const Clock& clock)
      : runner_(runner),
        quota_(quota),
        times_(times),
        context_(context),
        clock_(clock),
        span_(StartSpan(context)),
        sending_(watch, context) {}

  void Start() {
    self_ = shared_from_this();
    Advance();
  }

  void OnReadDone(bool ok) override {
    std::shared_ptr<Exchange> exchange;
    bool is_wanted = false;
    {
      MutexLock lock(&mutex_);
      exchange = std::exchange(incoming_, nullptr);
      is_wanted = ok && !broken_;
      if (is_wanted) running_.insert(exchange);
      if (!ok) reads_ended_ = true;
    }
    if (is_wanted) {
      const HandlerTimer timer(times_, clock_, Handler::kMultiplyStream, clock_.NowNs());
      Run(exchange);
    }
    Advance();
  }

  void OnWriteDone(bool ok) override {
    sending_.End();
    {
      MutexLock lock(&mutex_);
      outgoing_ = nullptr;
      if (!ok) broken_ = true;
    }
    Advance();
  }

  void OnCancel() override {
    std::vector<JobId> jobs;
    {
      MutexLock lock(&mutex_);
      broken_ = true;
      for (const auto& exchange : running_) jobs.push_back(exchange->job_id);
    }
    runner_.Cancel(jobs);
    Advance();
  }

  void OnDone() override { self_.reset(); }

 private:
  void Run(const std::shared_ptr<Exchange>& exchange) {
    Arrival arrival = ArrivalOf(context_, clock_.NowNs(), clock_);
    if (span_) arrival.span = ChildOf(*span_);
    absl::StatusOr<JobId> id =
        exchange->product.Start(runner_, quota_, exchange->request.buffer, std::move(arrival),
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
      is_cancelled = broken_;  // OnCancel may have come before the id was known.
    }
    if (is_cancelled) runner_.Cancel(*id);
  }

  void Answer(const std::shared_ptr<Exchange>& exchange, const absl::Status& status) {
    ProductExchange& product = exchange->product;
    exchange->answer.buffer =
        status.ok() ? product.TakeStreamAnswer() : StreamRefusal(product.request_id(), status);
    {
      MutexLock lock(&mutex_);
      running_.erase(exchange);
      answers_.push_back(exchange);
    }
    Advance();
  }

  size_t UnansweredRequests() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return running_.size() + answers_.size() + (outgoing_ != nullptr ? 1 : 0);
  }

  void Advance() ABSL_LOCKS_EXCLUDED(mutex_) {
    WireBytes* to_read = nullptr;
    const WireBytes* to_write = nullptr;
    bool is_last = false;
    grpc::Status status;
    {
      MutexLock lock(&mutex_);
      if (broken_) answers_.clear();
      if (outgoing_ == nullptr && !answers_.empty()) {
        outgoing_ = std::move(answers_.front());
        answers_.pop_front();
        to_write = &outgoing_->answer;
      }
      const bool may_read = incoming_ == nullptr && !reads_ended_ && !broken_;
      if (may_read && UnansweredRequests() < kMaxStreamRequests) {
        incoming_ = std::make_shared<Exchange>();
        to_read = &incoming_->request;
      }
      if (incoming_ == nullptr && UnansweredRequests() == 0 && !finished_) {
        is_last = finished_ = true;
        if (broken_) status = grpc::Status::CANCELLED;
      }
    }
    if (to_write != nullptr) {
      sending_.Begin(static_cast<int64_t>(to_write->buffer.Length()));
      StartWrite(to_write);
    }
    if (to_read != nullptr) StartRead(to_read);
    if (is_last) Finish(status);
  }

  ProductRunner& runner_;
  ReceiveQuota& quota_;
  HandlerTimes& times_;
  grpc::CallbackServerContext& context_;
  const Clock& clock_;
  const std::optional<TraceSpan> span_;  // The span of the stream, parent of its products' spans.
  SendWatch::Call sending_;
  std::shared_ptr<MultiplyStreamReactor> self_;

  Mutex mutex_;
  std::shared_ptr<Exchange> incoming_ ABSL_GUARDED_BY(mutex_);             // Being read.
  std::set<std::shared_ptr<Exchange>> running_ ABSL_GUARDED_BY(mutex_);    // Products under way.
  std::deque<std::shared_ptr<Exchange>> answers_ ABSL_GUARDED_BY(mutex_);  // To be written.
  std::shared_ptr<Exchange> outgoing_ ABSL_GUARDED_BY(mutex_);             // Being written.
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;  // The client has closed its side.
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;       // Cancelled, or a write failed.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerBidiReactor<WireBytes, WireBytes>* StartMultiplyStream(
    ProductRunner& runner, ReceiveQuota& quota, SendWatch& watch, HandlerTimes& times,
    grpc::CallbackServerContext& context, const Clock& clock) {
  const auto reactor =
      std::make_shared<MultiplyStreamReactor>(runner, quota, watch, times, context, clock);
  reactor->Start();
  return reactor.get();
}

}  // namespace gemmd
