// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/infer_call.h"

#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gemmd/v1/gemm.pb.h"
#include "kernels/or_no_memory.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "kserve/v2/inference.pb.h"
#include "proto/field_start.h"
#include "server/device/held_bytes.h"
#include "server/kserve/convert_infer.h"
#include "server/kserve/datatype.h"
#include "server/kserve/models.h"
#include "server/product/counts.h"
#include "server/system/mutex.h"
#include "server/wire/calls.h"
#include "server/wire/outgoing.h"
#include "server/wire/product_exchange.h"

namespace gemmd {

namespace {

using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

// Unanswered requests on one stream before the server stops reading, and answers that wait to be
// read.
constexpr size_t kMostStreamedInfers = 1024;
constexpr size_t kMostWaitingInferAnswers = 256;

constexpr int kRaw = ModelInferResponse::kRawOutputContentsFieldNumber;

// What an answer repeats of its request.
struct InferSubject {
  std::string model;
  std::string id;
  bool has_batch = false;
};

void DescribeD(const InferSubject& subject, const v1::Matrix& d,
               ModelInferResponse::InferOutputTensor& output) {
  const ElementType type = TypeOfWire(d.type());
  output.set_name("D");
  output.set_datatype(std::string(DatatypeOf(type)));
  if (subject.has_batch) output.add_shape(d.batch());
  output.add_shape(d.rows());
  output.add_shape(RowExtent(type, d.columns()));
  auto& parameters = *output.mutable_parameters();
  parameters["type"].set_string_param(std::string(NameOf(type)));
  if (BitsOf(type) < 8) parameters["columns"].set_int64_param(d.columns());
}

void DescribeProduct(const v1::MultiplyResponse& product, ModelInferResponse& answer) {
  auto& parameters = *answer.mutable_parameters();
  parameters["kernel"].set_string_param(product.kernel());
  parameters["device"].set_string_param(product.device());
  parameters["operations"].set_int64_param(product.operations());
  const v1::Timing& timing = product.timing();
  const std::pair<const char*, int64_t> stages[] = {
      {"receive_ns", timing.receive_ns()},   {"queue_ns", timing.queue_ns()},
      {"copy_in_ns", timing.copy_in_ns()},   {"compute_ns", timing.compute_ns()},
      {"copy_out_ns", timing.copy_out_ns()}, {"send_prepare_ns", timing.send_prepare_ns()},
      {"total_ns", timing.total_ns()}};
  for (const auto& [name, ns] : stages) parameters[name].set_int64_param(ns);
  if (!product.has_verification()) return;
  const bool is_passed = product.verification().outcome() == v1::VERIFY_OUTCOME_PASSED;
  parameters["verification"].set_string_param(is_passed ? "passed" : "not_verified");
}

ModelInferResponse WithoutD(const InferSubject& subject, const v1::MultiplyResponse& product) {
  ModelInferResponse answer;
  answer.set_model_name(subject.model);
  answer.set_model_version(std::string(kModelVersion));
  answer.set_id(subject.id);
  DescribeProduct(product, answer);
  DescribeD(subject, product.d(), *answer.add_outputs());
  return answer;
}

// The bytes of a ModelInferResponse. `product` lacks the bytes of D, which is not copied: gRPC
// borrows the memory of the result.
grpc::ByteBuffer InferAnswer(const InferSubject& subject, const v1::MultiplyResponse& product,
                             HeldBytes d) {
  std::string head = WithoutD(subject, product).SerializeAsString();
  AppendFieldStart(kRaw, d.size(), head);
  return MessageOf(std::move(head), std::move(d));
}

// The bytes of a ModelStreamInferResponse.
grpc::ByteBuffer StreamedInferAnswer(const InferSubject& subject,
                                     const v1::MultiplyResponse& product, HeldBytes d) {
  ModelInferResponse answer = WithoutD(subject, product);
  (*answer.mutable_parameters())["triton_final_response"].set_bool_param(true);
  const std::string inner = answer.SerializeAsString();
  std::string head;
  AppendFieldStart(ModelStreamInferResponse::kInferResponseFieldNumber,
                   inner.size() + EncodedFieldBytes(kRaw, d.size()), head);
  head += inner;
  AppendFieldStart(kRaw, d.size(), head);
  return MessageOf(std::move(head), std::move(d));
}

grpc::ByteBuffer StreamedRefusal(const std::string& id, const absl::Status& status) {
  ModelStreamInferResponse answer;
  answer.set_error_message(
      Concat(absl::StatusCodeToString(status.code()), ": ", std::string(status.message())));
  answer.mutable_infer_response()->set_id(id);
  auto& parameters = *answer.mutable_infer_response()->mutable_parameters();
  parameters["triton_final_response"].set_bool_param(true);
  const grpc::Slice slice(answer.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

constexpr std::string_view kNoMemory = "message: no memory to parse it in, try again later";

// One product that was asked for in the words of KServe, from the bytes of its request to those of
// its answer: the same for unary calls and streams.
class InferExchange {
 public:
  using Answer = ProductExchange::Answer;

  explicit InferExchange(const InferSetting& setting) : setting_(setting) {}

  // As ProductExchange::Start; errors, here and those that `answer` gets, are in the words of
  // KServe.
  absl::StatusOr<JobId> Start(grpc::ByteBuffer& request, Arrival arrival, Answer answer);

  std::string id() const { return product_.request_id(); }
  int64_t answer_bytes() const { return product_.answer_bytes(); }
  void LeaveQueue() { product_.LeaveQueue(); }

  // The answer to a product that is OK and has left the queue, once.
  grpc::ByteBuffer TakeUnaryAnswer();
  grpc::ByteBuffer TakeStreamedAnswer();

 private:
  class Request;
  struct Known {  // Once the request is parsed.
    std::string model;
    ModelCounts::Key key;
    InferAsked asked;
  };

  absl::Status End(const absl::Status& status, int64_t arrived_ns);
  InferSubject Subject() const;

  const InferSetting& setting_;
  std::optional<Known> known_;
  ProductExchange product_;
};

class InferExchange::Request final : public ArrivedRequest {
 public:
  Request(InferExchange& exchange, grpc::ByteBuffer& buffer)
      : exchange_(exchange), message_(buffer) {}

  absl::StatusOr<int64_t> Examine(v1::MultiplyRequest& /*message*/) override {
    RETURN_IF_ERROR(message_.Read());
    ASSIGN_OR_RETURN(const int64_t prepared,
                     OrNoMemory(kNoMemory, [this] { return PrepareContents(message_); }));
    return message_.wire_bytes() + message_.request_bytes() + prepared;
  }

  // Contents that came in scraps are put together.
  absl::Status Parse(v1::MultiplyRequest& message, ReceiveQuota& quota, HeldFields& held,
                     Arrival& arrival) override {
    return OrNoMemory(kNoMemory, [&] { return Convert(message, quota, held, arrival); });
  }

  std::string UnparsedId() override { return message_.UnparsedId(); }

 private:
  absl::Status Convert(v1::MultiplyRequest& message, ReceiveQuota& quota, HeldFields& held,
                       Arrival& arrival) {
    const inference::ModelInferRequest& request = message_.request();
    message.set_request_id(request.id());
    ASSIGN_OR_RETURN(const Model model,
                     exchange_.setting_.models.Find({arrival.session, arrival.caller},
                                                    request.model_name(), request.model_version()));
    Known& known = exchange_.known_.emplace();
    known.model = model.name;
    known.key = model.handle();
    ASSIGN_OR_RETURN(known.asked, ConvertInfer(message_, model, quota, message, held));
    if (known.asked.timeout_ns > 0) {
      arrival.deadline_ns =
          std::min(arrival.deadline_ns, SaturatingSum(arrival.arrived_ns, known.asked.timeout_ns));
    }
    return absl::OkStatus();
  }

  InferExchange& exchange_;
  InferMessage message_;
};

absl::StatusOr<JobId> InferExchange::Start(grpc::ByteBuffer& request, Arrival arrival,
                                           Answer answer) {
  const int64_t arrived_ns = arrival.arrived_ns;
  Request arrived(*this, request);
  absl::StatusOr<JobId> id = product_.Start(
      setting_.runner, setting_.quota, arrived, std::move(arrival),
      [this, arrived_ns, answer = std::move(answer)](const absl::Status& status) mutable {
        std::move(answer)(End(status, arrived_ns));
      });
  if (id.ok()) return id;
  return End(id.status(), arrived_ns);
}

// Counts the product, and gives its status in the words of its request.
absl::Status InferExchange::End(const absl::Status& status, int64_t arrived_ns) {
  if (!known_) return status;
  if (!status.ok()) {
    setting_.counts.AddFailure(known_->key, setting_.clock.NowNs() - arrived_ns);
    return known_->asked.places.Rename(status);
  }
  const Product& product = product_.product();
  setting_.counts.AddSuccess(known_->key, ToWire(product.timing), product.job.problem.batch,
                             absl::ToUnixMillis(absl::Now()));
  return status;
}

InferSubject InferExchange::Subject() const {
  return {known_->model, product_.request_id(), known_->asked.has_batch};
}

grpc::ByteBuffer InferExchange::TakeUnaryAnswer() {
  return InferAnswer(Subject(), product_.TakeResponse(), product_.TakeD());
}

grpc::ByteBuffer InferExchange::TakeStreamedAnswer() {
  return StreamedInferAnswer(Subject(), product_.TakeResponse(), product_.TakeD());
}

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
        origin_(OriginOf(context, "ModelStreamInfer", setting.gate, setting.clock)),
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
        ArrivalOf(context_, origin_, arrived_ns, setting_.gate, setting_.runner.tensors());
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
  const Arrival origin_;
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

grpc::ServerUnaryReactor* StartInfer(const InferSetting& setting,
                                     grpc::CallbackServerContext& context, const WireBytes& request,
                                     WireBytes& response) {
  // gRPC calls this as soon as the last byte is there.
  const int64_t arrived_ns = setting.clock.NowNs();
  const HandlerTimer timer(setting.times, setting.clock, Handler::kModelInfer, arrived_ns);
  auto* const call =
      new UnaryProduct<InferExchange>({setting.times, setting.clock, Handler::kModelInfer},
                                      setting.runner, setting.watch, context, response, setting);
  call->Start(ArrivalOf(context, OriginOf(context, "ModelInfer", setting.gate, setting.clock),
                        arrived_ns, setting.gate, setting.runner.tensors()),
              [&](InferExchange& exchange, Arrival arrival, ProductExchange::Answer answer) {
                return exchange.Start(request.buffer, std::move(arrival), std::move(answer));
              });
  return call;
}

grpc::ServerBidiReactor<WireBytes, WireBytes>* StartInferStream(
    const InferSetting& setting, grpc::CallbackServerContext& context) {
  const auto reactor = std::make_shared<InferStreamReactor>(setting, context);
  reactor->Start();
  return reactor.get();
}

}  // namespace gemmd
