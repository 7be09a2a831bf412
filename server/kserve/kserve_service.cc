// SPDX-License-Identifier: Apache-2.0
#include "server/kserve/kserve_service.h"

#include <string>
#include <string_view>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/kserve/infer_call.h"
#include "server/kserve/models.h"
#include "server/system/version.h"
#include "server/wire/calls.h"
#include "server/wire/incoming.h"
#include "server/wire/tensor_service.h"

namespace gemmd {
namespace {

// What answers hold at most for readers that do not read.
constexpr int64_t kMaxUnreadBytes = int64_t{32} << 20;

// The numbers of the methods in the order of the service's declaration.
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
  kRepositoryModelUnload,
  kSystemSharedMemoryStatus,
  kSystemSharedMemoryRegister,
  kSystemSharedMemoryUnregister,
  kCudaSharedMemoryStatus,
  kCudaSharedMemoryRegister,
  kCudaSharedMemoryUnregister,
  kTraceSetting,
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

struct Unsupported {
  Method method;
  std::string_view reason;
};
constexpr Unsupported kUnsupported[] = {
    {kRepositoryModelLoad, kNoLoading},
    {kRepositoryModelUnload, kNoLoading},
    {kSystemSharedMemoryStatus, kNoSharedMemory},
    {kSystemSharedMemoryRegister, kNoSharedMemory},
    {kSystemSharedMemoryUnregister, kNoSharedMemory},
    {kCudaSharedMemoryStatus, kNoSharedMemory},
    {kCudaSharedMemoryRegister, kNoSharedMemory},
    {kCudaSharedMemoryUnregister, kNoSharedMemory},
    {kTraceSetting, kNoSettings},
    {kLogSettings, kNoSettings},
};

// What operators and their probes ask a server that is short of memory.
bool IsForOperators(Method method) {
  return method == kServerLive || method == kServerReady || method == kModelStatistics;
}

class KserveService final : public inference::GRPCInferenceService::Service {
 public:
  KserveService(ProductRunner& runner, const Gate& gate, ReceiveQuota& quota, SendWatch& watch,
                HandlerTimes& times, const Clock& clock, std::function<bool()> is_ready)
      : runner_(runner),
        gate_(gate),
        watch_(watch),
        times_(times),
        clock_(clock),
        is_ready_(std::move(is_ready)),
        models_(runner.tensors()),
        unread_(kMaxUnreadBytes),
        setting_{.runner = runner,
                 .gate = gate,
                 .quota = quota,
                 .models = models_,
                 .counts = counts_,
                 .watch = watch,
                 .times = times,
                 .clock = clock} {
    AddProducts();
    AddServer();
    AddModels();
    for (const Unsupported& method : kUnsupported) {
      AddAnswer(method.method,
                [reason = method.reason](
                    auto& /*context*/, const auto& /*request*/) -> absl::StatusOr<RegistryAnswer> {
                  return absl::UnimplementedError(Concat(reason));
                });
    }
  }

 private:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;

  void AddProducts() {
    MarkMethodRawCallback(
        kModelInfer, new grpc::internal::CallbackUnaryHandler<WireBytes, WireBytes>(
                         [this](Context* context, const WireBytes* request, WireBytes* response) {
                           return StartInfer(setting_, *context, *request, *response);
                         }));
    MarkMethodRawCallback(
        kModelStreamInfer,
        new grpc::internal::CallbackBidiHandler<WireBytes, WireBytes>(
            [this](Context* context) { return StartInferStream(setting_, *context); }));
  }

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
        kModelReady,
        [this](Context& context,
               const inference::ModelReadyRequest& wire) -> absl::StatusOr<RegistryAnswer> {
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
        [this](Context& context,
               const inference::ModelMetadataRequest& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(const Model model, Find(context, wire));
          return AnswerOf(MetadataOf(model));
        });
    Add<inference::ModelConfigRequest>(
        kModelConfig,
        [this](Context& context,
               const inference::ModelConfigRequest& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(const Model model, Find(context, wire));
          return AnswerOf(ConfigOf(model));
        });
    Add<inference::ModelStatisticsRequest>(
        kModelStatistics, [this](Context& context, const inference::ModelStatisticsRequest& wire) {
          return Statistics(context, wire);
        });
    Add<inference::RepositoryIndexRequest>(
        kRepositoryIndex,
        [this](Context& context,
               const inference::RepositoryIndexRequest& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(const ModelUser user, UserOf(context, Role::kRegistry));
          return AnswerOf(IndexOf(models_.List(user), wire.ready()));
        });
  }

  absl::StatusOr<ModelUser> UserOf(Context& context, Role role) const {
    ModelUser user;
    ASSIGN_OR_RETURN(user.caller, gate_.CallerOf(context, role));
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

  // Answers a method with what `make` gives for its parsed request.
  template <typename Request, typename Make>
  void Add(Method method, Make make) {
    AddAnswer(method,
              [make](Context& context, const Bytes& request) -> absl::StatusOr<RegistryAnswer> {
                Request wire;
                RETURN_IF_ERROR(ReadRequest(request, wire));
                return make(context, wire);
              });
  }

  template <typename Answer>
  void AddAnswer(Method method, Answer answer) {
    MarkMethodRawCallback(
        method,
        new grpc::internal::CallbackUnaryHandler<Bytes, Bytes>(
            [this, method, answer](Context* context, const Bytes* request, Bytes* response) {
              const HandlerTiming timing{times_, clock_, Handler::kKserve};
              const HandlerTimer timer = timing.Begin();
              return AnswerRegistryCall(
                  timing, *context, unread_, watch_,
                  [&]() -> absl::StatusOr<RegistryAnswer> {
                    if (!IsForOperators(method)) RETURN_IF_ERROR(runner_.CheckQuestion());
                    return answer(*context, TakeRequest(*request));
                  },
                  *response);
            }));
  }

  const ProductRunner& runner_;
  const Gate& gate_;
  SendWatch& watch_;
  HandlerTimes& times_;
  const Clock& clock_;
  const std::function<bool()> is_ready_;
  const Models models_;
  ModelCounts counts_;
  UnreadAnswers unread_;
  const InferSetting setting_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeKserveService(ProductRunner& runner, const Gate& gate,
                                                 ReceiveQuota& quota, SendWatch& watch,
                                                 HandlerTimes& times, const Clock& clock,
                                                 std::function<bool()> is_ready) {
  return std::make_unique<KserveService>(runner, gate, quota, watch, times, clock,
                                         std::move(is_ready));
}

}  // namespace gemmd
