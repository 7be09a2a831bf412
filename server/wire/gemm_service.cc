// SPDX-License-Identifier: Apache-2.0
#include "server/wire/gemm_service.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "kernels/or_no_memory.h"
#include "kernels/status_macros.h"
#include "server/system/deferral.h"
#include "server/system/mutex.h"
#include "server/wire/calls.h"
#include "server/wire/incoming.h"
#include "server/wire/outgoing.h"
#include "server/wire/product_exchange.h"

namespace gemmd {

namespace {

// Answers that wait for one before them to leave. Who does not read them is sent no more.
constexpr size_t kMostWaitingAnswers = kMostJointAnswers;

// So many answers do not wait for others that end with them: their callers go on meanwhile.
constexpr size_t kSentTogether = 16;

// So many products of a message are queued at once: parsing goes on while the device has those.
constexpr size_t kStartedTogether = 64;

// So long a message keeps one of gRPC's threads at a time.
constexpr int64_t kMostAtOnceNs = 1'000'000;

// The end of a product. Nothing is kept of a refused one but its part of a message.
struct Ended {
  std::unique_ptr<RequestedProduct> product;
  std::string refusal;

  int64_t bytes() const {
    return product != nullptr ? product->answer_bytes() : static_cast<int64_t>(refusal.size());
  }
};

grpc::ByteBuffer AnswersOf(const std::vector<Ended>& products) {
  JointAnswer message;
  for (const Ended& ended : products) {
    if (ended.product != nullptr) {
      message.Add(*ended.product);
    } else {
      message.Add(ended.refusal);
    }
  }
  return message.Take();
}

// The state changes under the lock; what follows from it (read, write, finish) is decided there and
// done afterwards. At most one read and one write are under way, and the stream is finished only
// when no read, no write and no product is under way.
//
// gRPC holds the reactor until OnDone, and so does the callback of every product under way.
class MultiplyStreamReactor final : public grpc::ServerBidiReactor<WireBytes, WireBytes>,
                                    public std::enable_shared_from_this<MultiplyStreamReactor>,
                                    public Deferred {
 public:
  MultiplyStreamReactor(ProductRunner& runner, const Gate& gate, ReceiveQuota& quota,
                        SendWatch& watch, HandlerTimes& times, grpc::CallbackServerContext& context,
                        const Clock& clock)
      : runner_(runner),
        gate_(gate),
        quota_(quota),
        timing_{times, clock, Handler::kMultiplyStream},
        context_(context),
        clock_(clock),
        span_(StartSpan(context)),
        origin_(OriginOf(context, "MultiplyStream", gate, clock)),
        sending_(watch, context) {}

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
      is_wanted = ok && !broken_;
      if (!ok) reads_ended_ = true;
    }
    if (is_wanted) {
      Unpack();
    } else {
      EndReading();
    }
  }

  void OnWriteDone(bool ok) override {
    const HandlerTimer timer = timing_.Begin();
    sending_.End();
    written_.clear();
    {
      MutexLock lock(&mutex_);
      being_written_ = 0;
      if (!ok) broken_ = true;
    }
    Advance();
  }

  void OnCancel() override {
    const HandlerTimer timer = timing_.Begin();
    Break(absl::OkStatus());
  }

  void OnDone() override {
    const HandlerTimer timer = timing_.Begin();
    self_.reset();
  }

  void RunDeferred() override { Advance(); }

 private:
  // Nothing more is read and answered. `reason` is OK where the client has gone.
  void Break(absl::Status reason) {
    std::vector<JobId> jobs;
    {
      MutexLock lock(&mutex_);
      broken_ = true;
      refused_.Update(std::move(reason));
      jobs.assign(running_.begin(), running_.end());
    }
    runner_.Cancel(jobs);
    Advance();
  }

  // Cuts the message that was read into its products, and starts them.
  void Unpack() {
    if (absl::Status status = Cut(); !status.ok()) {
      {
        MutexLock lock(&mutex_);
        refused_ = std::move(status);
        reads_ended_ = true;
      }
      EndReading();
      return;
    }
    StartSome();
  }

  // Who was allowed to begin a stream may have lost that since.
  absl::Status Cut() {
    ASSIGN_OR_RETURN(arrival_,
                     ArrivalOf(context_, origin_, clock_.NowNs(), gate_, runner_.tensors()));
    products_.emplace(incoming_.buffer);
    RETURN_IF_ERROR(products_->Cut());
    is_list_ = products_->size() > 1;
    if (is_list_) FindSession();
    return absl::OkStatus();
  }

  // Once for all products.
  void FindSession() {
    const bool has_token = !arrival_.session.empty();
    if (!has_token && arrival_.caller != nullptr) gemmd::FindSession(runner_.tensors(), arrival_);
    if (arrival_.used_session != nullptr) arrival_.session.clear();
  }

  // Starts products for a while, those of a list together. Others that wait for this thread come
  // before the rest, which is started on another one.
  void StartSome() {
    const Deferral deferral;  // What is refused is told together.
    const int64_t until_ns = clock_.NowNs() + kMostAtOnceNs;
    while (products_->size() > 0) {
      Company company;
      if (is_list_) company.reserve(std::min(products_->size(), kStartedTogether));
      bool is_over = false;
      while (products_->size() > 0 && company.size() < kStartedTogether && !is_over) {
        StartNext(is_list_ ? &company : nullptr);
        is_over = clock_.NowNs() >= until_ns;
      }
      runner_.StartTogether(std::move(company));
      CancelIfBroken();
      if (is_over) break;
    }
    if (products_->size() > 0) {
      // The alarm keeps what it calls, so that must not keep the reactor. The stream does not end
      // before the message is started.
      alarm_.Set(gpr_now(GPR_CLOCK_MONOTONIC), [this](bool /*ok*/) {
        const auto self = shared_from_this();
        const HandlerTimer timer = timing_.Begin();
        self->StartSome();
      });
      return;
    }
    EndReading();
  }

  void EndReading() {
    products_.reset();
    arrival_.used_session.reset();
    {
      MutexLock lock(&mutex_);
      is_reading_ = false;
    }
    Advance();
  }

  void StartNext(Company* company) {
    auto product = std::make_unique<RequestedProduct>();
    const JobId id = product->id = runner_.NewId();
    {
      MutexLock lock(&mutex_);
      running_.insert(id);
    }
    product->arrival = arrival_;
    if (span_) product->arrival.span = ChildOf(*span_);
    product->answer = [stream = shared_from_this()](std::unique_ptr<Product> ended) {
      stream->Answer(TakeEnded(std::move(ended)));
    };
    if (absl::Status status = Start(product, company); !status.ok()) {
      product->outcome.status = std::move(status);
      Answer(std::move(product));
    }
  }

  absl::Status Start(std::unique_ptr<RequestedProduct>& product, Company* company) {
    ASSIGN_OR_RETURN(Incoming incoming, products_->Take());
    MultiplyMessage request(std::move(incoming));
    return RequestedProduct::Start(runner_, quota_, request, product, company);
  }

  // OnCancel may have come before products were queued.
  void CancelIfBroken() {
    std::vector<JobId> jobs;
    {
      MutexLock lock(&mutex_);
      if (broken_) jobs.assign(running_.begin(), running_.end());
    }
    if (!jobs.empty()) runner_.Cancel(jobs);
  }

  void Answer(std::unique_ptr<RequestedProduct> product) {
    const HeldFields held = product->ReleaseRequest();  // Freed when the answer is on its way.
    const JobId id = product->id;
    Ended ended;
    if (const absl::Status& status = product->outcome.status; status.ok()) {
      product->LeaveQueue();
      ended.product = std::move(product);
    } else {
      ended.refusal = JointAnswer::RefusalOf(product->arrival.request_id, status);
      product.reset();
    }
    // Others that end with it leave in one message: gRPC takes as long for a short one as for them
    // all.
    const bool is_put_off = Deferral::PutOff(shared_from_this());
    Step next;
    {
      MutexLock lock(&mutex_);
      running_.erase(id);
      answers_.push_back(std::move(ended));
      if (!is_put_off || answers_.size() >= kSentTogether) Decide(next);
    }
    Do(std::move(next));
  }

  size_t UnansweredRequests() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return running_.size() + answers_.size() + being_written_;
  }

  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !is_reading_ && !reads_ended_ && !broken_ && UnansweredRequests() < kMaxStreamRequests &&
           answers_.size() < kMostWaitingAnswers;
  }

  // As many answers as one message holds.
  std::vector<Ended> TakeAnswers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Ended> taken;
    taken.reserve(std::min(answers_.size(), kMostJointAnswers));
    int64_t bytes = 0;
    while (!answers_.empty() && taken.size() < kMostJointAnswers) {
      bytes += answers_.front().bytes();
      if (!taken.empty() && bytes > kMostJointAnswerBytes) break;
      taken.push_back(std::move(answers_.front()));
      answers_.pop_front();
    }
    return taken;
  }

  // What follows from the state.
  struct Step {
    bool shall_read = false;
    bool shall_finish = false;
    std::vector<Ended> to_write;
    std::vector<Ended> unwanted;  // Freed without the lock.
    grpc::Status status;
  };

  void Decide(Step& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (broken_) {
      std::move(answers_.begin(), answers_.end(), std::back_inserter(next.unwanted));
      answers_.clear();
    }
    if (being_written_ == 0 && !answers_.empty()) {
      next.to_write = TakeAnswers();
      being_written_ = next.to_write.size();
    }
    if (MayRead()) next.shall_read = is_reading_ = true;
    if (!is_reading_ && UnansweredRequests() == 0 && !finished_) {
      next.shall_finish = finished_ = true;
      next.status = broken_ && refused_.ok() ? grpc::Status::CANCELLED : ToGrpcStatus(refused_);
    }
  }

  void Do(Step next) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!next.to_write.empty()) Write(std::move(next.to_write));
    if (next.shall_read) StartRead(&incoming_);
    if (next.shall_finish) Finish(next.status);
  }

  // Their bytes stay in the account until they have left.
  void Write(std::vector<Ended> products) {
    written_ = std::move(products);
    const absl::Status status = OrNoMemory("message: no memory for the answers", [&] {
      grpc::ByteBuffer message = AnswersOf(written_);
      answer_.buffer.Swap(&message);  // To assign it would copy the list of its slices.
      return absl::OkStatus();
    });
    if (!status.ok()) {
      written_.clear();
      {
        MutexLock lock(&mutex_);
        being_written_ = 0;
      }
      return Break(status);
    }
    sending_.Begin(static_cast<int64_t>(answer_.buffer.Length()));
    StartWrite(&answer_);
  }

  void Advance() ABSL_LOCKS_EXCLUDED(mutex_) {
    Step next;
    {
      MutexLock lock(&mutex_);
      Decide(next);
    }
    Do(std::move(next));
  }

  ProductRunner& runner_;
  const Gate& gate_;
  ReceiveQuota& quota_;
  const HandlerTiming timing_;
  grpc::CallbackServerContext& context_;
  const Clock& clock_;
  const std::optional<TraceSpan> span_;  // The span of the stream, parent of its products' spans.
  const Arrival origin_;
  SendWatch::Call sending_;
  std::shared_ptr<MultiplyStreamReactor> self_;

  // The message that is written, and what it answers. Its writer's alone.
  WireBytes answer_;
  std::vector<Ended> written_;

  // The message that is read, until its products are started. Its reader's alone.
  WireBytes incoming_;
  std::optional<JointRequest> products_;
  bool is_list_ = false;  // It asks for several products.
  Arrival arrival_;
  grpc::Alarm alarm_;

  Mutex mutex_;
  absl::flat_hash_set<JobId> running_ ABSL_GUARDED_BY(mutex_);
  std::deque<Ended> answers_ ABSL_GUARDED_BY(mutex_);  // To be written.
  size_t being_written_ ABSL_GUARDED_BY(mutex_) = 0;   // Answers.
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;    // Until what was read is started.
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;   // Closed by the client, or refused.
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;        // Cancelled, or a write failed.
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);  // Why the stream ends; OK where it may go on.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerBidiReactor<WireBytes, WireBytes>* StartMultiplyStream(
    ProductRunner& runner, const Gate& gate, ReceiveQuota& quota, SendWatch& watch,
    HandlerTimes& times, grpc::CallbackServerContext& context, const Clock& clock) {
  const auto reactor =
      std::make_shared<MultiplyStreamReactor>(runner, gate, quota, watch, times, context, clock);
  reactor->Start();
  return reactor.get();
}

namespace {

// The numbers of the methods in the order of the service's declaration.
constexpr int kMultiply = 0;
constexpr int kMultiplyStream = 1;

}  // namespace

GemmService::GemmService(ProductRunner& runner, const Gate& gate, ReceiveQuota& quota,
                         SendWatch& watch, HandlerTimes& times, const Clock& clock)
    : runner_(runner), gate_(gate), quota_(quota), watch_(watch), times_(times), clock_(clock) {
  MarkMethodRawCallback(kMultiply, new grpc::internal::CallbackUnaryHandler<WireBytes, WireBytes>(
                                       [this](grpc::CallbackServerContext* context,
                                              const WireBytes* request, WireBytes* response) {
                                         return StartMultiply(*context, *request, *response);
                                       }));
  MarkMethodRawCallback(
      kMultiplyStream,
      new grpc::internal::CallbackBidiHandler<WireBytes, WireBytes>(
          [this](grpc::CallbackServerContext* context) { return StartStream(*context); }));
}

grpc::ServerUnaryReactor* GemmService::StartMultiply(grpc::CallbackServerContext& context,
                                                     const WireBytes& request,
                                                     WireBytes& response) {
  // gRPC calls this as soon as the last byte is there.
  const int64_t arrived_ns = clock_.NowNs();
  const HandlerTimer timer(times_, clock_, Handler::kMultiply, arrived_ns);
  auto* const call = new UnaryProduct<ProductExchange>({times_, clock_, Handler::kMultiply},
                                                       runner_, watch_, context, response);
  call->Start(ArrivalOf(context, OriginOf(context, "Multiply", gate_, clock_), arrived_ns, gate_,
                        runner_.tensors()),
              [&](ProductExchange& exchange, Arrival arrival, ProductExchange::Answer answer) {
                return exchange.Start(runner_, quota_, Incoming(request.buffer), std::move(arrival),
                                      std::move(answer));
              });
  return call;
}

grpc::ServerBidiReactor<WireBytes, WireBytes>* GemmService::StartStream(
    grpc::CallbackServerContext& context) {
  return StartMultiplyStream(runner_, gate_, quota_, watch_, times_, context, clock_);
}

}  // namespace gemmd
