// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/kserve_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gemmd/v1/gemm.pb.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kserve/v2/inference.grpc.pb.h"
#include "proto/field_start.h"
#include "server/device/held_bytes.h"
#include "server/kserve/convert_infer.h"
#include "server/kserve/models.h"
#include "server/system/version.h"
#include "server/wire/outgoing.h"
#include "server/wire/product_exchange.h"
#include "server/wire/tensor_service.h"

namespace gemmd {
namespace {

// The calls that compute: one product, or a stream of them.

// Shared by these calls. Borrowed.
struct InferSetting : ServiceParts {
  const Models& models;
  ModelCounts& counts;
};

using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

constexpr int kRaw = ModelInferResponse::kRawOutputContentsFieldNumber;

void DescribeD(const v1::Matrix& d, bool has_batch, ModelInferResponse::InferOutputTensor& output) {
  const ElementType type = TypeOfWire(d.type());
  output.set_name("D");
  output.set_datatype(std::string(DatatypeOf(type)));
  if (has_batch) output.add_shape(d.batch());
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
  for (int i = 0; i < v1::Timing::descriptor()->field_count(); ++i) {
    const auto* const stage = v1::Timing::descriptor()->field(i);
    parameters[std::string(stage->name())].set_int64_param(
        timing.GetReflection()->GetInt64(timing, stage));
  }
  if (!product.has_verification()) return;
  const bool is_passed = product.verification().outcome() == v1::VERIFY_OUTCOME_PASSED;
  parameters["verification"].set_string_param(is_passed ? "passed" : "not_verified");
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

// One product of the KServe protocol, from the bytes of its request to the bytes of its answer; the
// same for unary calls and streams.
class InferExchange {
 public:
  using Answer = ProductExchange::Answer;

  explicit InferExchange(const InferSetting& setting) : setting_(setting) {}

  // As ProductExchange::Start; the errors returned and those passed to `answer` use the terms of
  // KServe.
  absl::Status Start(JobId id, grpc::ByteBuffer& request, Arrival arrival, Answer answer,
                     Company* company = nullptr);

  std::string id() const { return product_.request_id(); }
  int64_t answer_bytes() const { return product_.answer_bytes(); }
  void LeaveQueue() { product_.LeaveQueue(); }

  // The answer to a product that is OK and has left the queue, as the bytes of a ModelInferResponse
  // or of a ModelStreamInferResponse. The bytes of D are not copied: gRPC borrows the memory of the
  // result. Call one of them, once.
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
  ModelInferResponse TakeAllButD();

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

  // Joins contents that arrived in many short slices.
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

absl::Status InferExchange::Start(JobId id, grpc::ByteBuffer& request, Arrival arrival,
                                  Answer answer, Company* company) {
  const int64_t arrived_ns = arrival.arrived_ns;
  Request arrived(*this, request);
  const absl::Status status = product_.Start(
      setting_, id, arrived, std::move(arrival),
      [this, arrived_ns, answer = std::move(answer)](const absl::Status& end) mutable {
        std::move(answer)(End(end, arrived_ns));
      },
      company);
  return status.ok() ? status : End(status, arrived_ns);
}

// Counts the product, and returns its status in the terms of its request.
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

ModelInferResponse InferExchange::TakeAllButD() {
  const v1::MultiplyResponse product = product_.TakeResponse();
  ModelInferResponse answer;
  answer.set_model_name(known_->model);
  answer.set_model_version(std::string(kModelVersion));
  answer.set_id(product_.request_id());
  DescribeProduct(product, answer);
  DescribeD(product.d(), known_->asked.has_batch, *answer.add_outputs());
  return answer;
}

grpc::ByteBuffer InferExchange::TakeUnaryAnswer() {
  std::string head = TakeAllButD().SerializeAsString();
  HeldBytes d = product_.TakeD();
  AppendFieldStart(kRaw, d.size(), head);
  return MessageOf(std::move(head), std::move(d));
}

grpc::ByteBuffer InferExchange::TakeStreamedAnswer() {
  ModelInferResponse answer = TakeAllButD();
  (*answer.mutable_parameters())["triton_final_response"].set_bool_param(true);
  const std::string inner = answer.SerializeAsString();
  HeldBytes d = product_.TakeD();
  std::string head;
  AppendFieldStart(ModelStreamInferResponse::kInferResponseFieldNumber,
                   inner.size() + EncodedFieldBytes(kRaw, d.size()), head);
  head += inner;
  AppendFieldStart(kRaw, d.size(), head);
  return MessageOf(std::move(head), std::move(d));
}

// A message that was read.
struct AskedInfer {
  WireBytes message;
  absl::StatusOr<Arrival> arrival;
  bool is_started = false;

  size_t size() const { return is_started ? 0 : 1; }
};

// A message to write: the answer of a product, or a refusal, for which nothing else is kept.
struct EndedInfer {
  std::shared_ptr<InferExchange> exchange;
  grpc::ByteBuffer refusal;

  int64_t bytes() const { return 0; }  // Each has its own message.
  int64_t refusal_bytes() const {
    return exchange != nullptr ? 0 : static_cast<int64_t>(sizeof(*this) + refusal.Length());
  }
};

// One ModelStreamInfer call: a message asks for one product, or answers one.
class InferStreamReactor final : public ProductStream<AskedInfer, EndedInfer> {
 public:
  InferStreamReactor(const InferSetting& setting, grpc::CallbackServerContext& context)
      : ProductStream(setting, HandlerOf("ModelStreamInfer"), /*max_joint=*/1, context),
        setting_(setting) {}

 private:
  grpc::ByteBuffer MessageOf(std::vector<EndedInfer>& answers) override {
    EndedInfer& answer = answers.front();
    return answer.exchange != nullptr ? answer.exchange->TakeStreamedAnswer()
                                      : std::move(answer.refusal);
  }

  absl::StatusOr<AskedInfer> ReadMessage(grpc::ByteBuffer& bytes, int64_t arrived_ns) override {
    AskedInfer asked = {.message = {}, .arrival = ArrivalOfMessage(arrived_ns)};
    asked.message.buffer.Swap(&bytes);
    return asked;
  }

  void StartProduct(AskedInfer& asked, Company& company) override {
    asked.is_started = true;
    const auto exchange = std::make_shared<InferExchange>(setting_);
    const JobId id = Enter();
    if (!asked.arrival.ok()) return Answer(id, exchange, asked.arrival.status());
    asked.arrival->span = SpanOfProduct();
    const absl::Status status = exchange->Start(
        id, asked.message.buffer, *std::move(asked.arrival),
        [this, self = shared_from_this(), id, exchange](const absl::Status& end) {
          Answer(id, exchange, end);
        },
        &company);
    if (!status.ok()) Answer(id, exchange, status);
  }

  void Answer(JobId id, const std::shared_ptr<InferExchange>& exchange,
              const absl::Status& status) {
    EndedInfer ended;
    if (status.ok()) {
      exchange->LeaveQueue();
      ended.exchange = exchange;
    } else {
      ended.refusal = StreamedRefusal(exchange->id(), status);
    }
    ProductStream::Answer(id, std::move(ended));
  }

  const InferSetting& setting_;
};

// The other parts of the service.

// Max bytes of answers that clients have not read.
constexpr int64_t kMaxUnreadBytes = int64_t{32} << 20;

// The numbers of the methods in the order of the service's declaration; of those without support,
// the first one of each kind, and the last one.
enum Method : int {
  kServerLive,
  kServerReady,
  kModelReady,
  kServerMetadata,
  kModelMetadata,
  kModelInfer,
  kModelStreamInfer,
  kModelConfig,
  kModelStatistics,
  kRepositoryIndex,
  kRepositoryModelLoad,
  kSystemSharedMemoryStatus = kRepositoryModelLoad + 2,
  kTraceSetting = kSystemSharedMemoryStatus + 6,
  kLogSettings
};

constexpr std::string_view kNoLoading =
    "repository: got a model to load or unload, want none: a model is a resident tensor; upload it "
    "with gemmd.v1.Tensors.Put (gemmctl put), delete it with Delete";
constexpr std::string_view kNoSharedMemory =
    "shared memory: got a call, want none: no memory is shared with this server; send "
    "raw_input_contents, and keep weights on the server as a resident tensor (gemmctl put), which "
    "is then a model";
constexpr std::string_view kNoSettings =
    "settings: got a call, want none: options of the command line set log and trace (gemmd --help)";

std::string NameOf(int method) {
  return inference::ServerLiveRequest::descriptor()->file()->service(0)->method(method)->name();
}

std::string_view ReasonOf(int unsupported_method) {
  if (unsupported_method < kSystemSharedMemoryStatus) return kNoLoading;
  return unsupported_method < kTraceSetting ? kNoSharedMemory : kNoSettings;
}

// That of all methods but those that compute.
constexpr Handler kHandler = HandlerOf("GRPCInferenceService");

// Methods that operators and their probes need even if the server is short of memory.
bool IsForOperators(int method) {
  return method == kServerLive || method == kServerReady || method == kModelStatistics;
}

class KserveService final : public AnsweredService<inference::GRPCInferenceService::Service> {
 public:
  KserveService(const ServiceParts& parts, std::function<bool()> is_ready)
      : AnsweredService(parts, kMaxUnreadBytes),
        is_ready_(std::move(is_ready)),
        models_(parts.runner.tensors()),
        setting_{parts, models_, counts_} {
    const auto begin = [](InferExchange& exchange, JobId id, grpc::ByteBuffer& request,
                          Arrival arrival, InferExchange::Answer answer) {
      return exchange.Start(id, request, std::move(arrival), std::move(answer));
    };
    MarkMethodRawCallback(kModelInfer, UnaryHandler<InferExchange>(
                                           setting_, HandlerOf("ModelInfer"), begin, setting_));
    MarkMethodRawCallback(kModelStreamInfer, StreamHandler<InferStreamReactor>(setting_));
    AddServer();
    AddModels();
    for (int method = kRepositoryModelLoad; method <= kLogSettings; ++method) {
      AddRaw(method, kHandler,
             [this, method](Context&, const auto&) -> absl::StatusOr<RegistryAnswer> {
               RETURN_IF_ERROR(parts_.runner.CheckQuestion());
               return absl::UnimplementedError(Concat(ReasonOf(method)));
             });
    }
  }

 private:
  void AddServer() {
    Add<inference::ServerLiveRequest>(kServerLive, [](auto&, const auto&) {
      inference::ServerLiveResponse response;
      response.set_live(true);
      return AnswerOf(response);
    });
    Add<inference::ServerReadyRequest>(kServerReady, [this](auto&, const auto&) {
      inference::ServerReadyResponse response;
      response.set_ready(is_ready_());
      return AnswerOf(response);
    });
    Add<inference::ServerMetadataRequest>(kServerMetadata, [](auto&, const auto&) {
      inference::ServerMetadataResponse response;
      response.set_name("gemmd");
      response.set_version(kVersion);
      for (const char* const extension :
           {"binary_tensor_data", "model_configuration", "model_repository", "parameters",
            "schedule_policy", "statistics"}) {
        response.add_extensions(extension);
      }
      return AnswerOf(response);
    });
  }

  void AddModels() {
    Add<inference::ModelReadyRequest>(
        kModelReady, [this](Context& context, const auto& wire) -> absl::StatusOr<RegistryAnswer> {
          const absl::StatusOr<Model> model = Find(context, wire);
          if (!model.ok() && !absl::IsNotFound(model.status()) &&
              !absl::IsFailedPrecondition(model.status())) {
            return model.status();
          }
          inference::ModelReadyResponse response;
          response.set_ready(model.ok() && is_ready_());
          return AnswerOf(response);
        });
    Add<inference::ModelMetadataRequest>(
        kModelMetadata,
        [this](Context& context, const auto& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(const Model model, Find(context, wire));
          return AnswerOf(MetadataOf(model));
        });
    Add<inference::ModelConfigRequest>(
        kModelConfig, [this](Context& context, const auto& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(const Model model, Find(context, wire));
          return AnswerOf(ConfigOf(model));
        });
    Add<inference::ModelStatisticsRequest>(
        kModelStatistics,
        [this](Context& context, const auto& wire) { return Statistics(context, wire); });
    Add<inference::RepositoryIndexRequest>(
        kRepositoryIndex,
        [this](Context& context, const auto& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(const ModelUser user, UserOf(context, Role::kRegistry));
          return AnswerOf(IndexOf(models_.List(user), wire.ready()));
        });
  }

  absl::StatusOr<ModelUser> UserOf(Context& context, Role role) const {
    ModelUser user;
    ASSIGN_OR_RETURN(user.caller, setting_.gate.CallerOf(context, role));
    user.session = SessionTokenOf(context);
    return user;
  }

  template <typename Request>
  absl::StatusOr<Model> Find(Context& context, const Request& wire) const {
    ASSIGN_OR_RETURN(const ModelUser user, UserOf(context, Role::kRegistry));
    return models_.Find(user, wire.name(), wire.version());
  }

  absl::StatusOr<RegistryAnswer> Statistics(Context& context,
                                            const inference::ModelStatisticsRequest& wire) const {
    ASSIGN_OR_RETURN(const ModelUser user, UserOf(context, Role::kStatistics));
    std::vector<Model> models;
    if (wire.name().empty()) {
      models = models_.List(user);
    } else {
      ASSIGN_OR_RETURN(Model model, models_.Find(user, wire.name(), wire.version()));
      models.push_back(std::move(model));
    }
    inference::ModelStatisticsResponse response;
    for (const Model& model : models) {
      *response.add_model_stats() = StatisticsOf(model, counts_.Read(model.handle()));
    }
    return AnswerOf(response);
  }

  // Answers a method with the result of `make` for its parsed request.
  template <typename Request, typename Make>
  void Add(int method, Make make) {
    const auto check = [this, method](Context&) {
      return IsForOperators(method) ? absl::OkStatus() : parts_.runner.CheckQuestion();
    };
    AnsweredService::Add<Request>(inference::GRPCInferenceService::service_full_name(),
                                  NameOf(method), kHandler, check, make);
  }

  const std::function<bool()> is_ready_;
  const Models models_;
  ModelCounts counts_;
  const InferSetting setting_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeKserveService(const ServiceParts& parts,
                                                 std::function<bool()> is_ready) {
  return std::make_unique<KserveService>(parts, std::move(is_ready));
}

}  // namespace gemmd
