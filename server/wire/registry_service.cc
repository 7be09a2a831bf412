// SPDX-License-Identifier: Apache-2.0
#include "server/wire/registry_service.h"

#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/catalog.h"
#include "kernels/cpu/host.h"
#include "kernels/status_macros.h"
#include "server/scheduling/caller_rules.h"
#include "server/system/version.h"
#include "server/wire/convert.h"
#include "server/wire/convert_instruction.h"
#include "server/wire/convert_registry.h"
#include "server/wire/convert_statistics.h"
#include "server/wire/read_request.h"
#include "server/wire/registry_call.h"
#include "server/wire/tensor_operands.h"
#include "server/wire/tensor_session.h"

namespace gemmd {
namespace {

// What Explain and DescribeFragment hold at most for readers that do not read; other answers are
// small, or kept anyway.
constexpr int64_t kMaxUnreadBytes = int64_t{32} << 20;

// Every method takes and gives bytes.
template <typename Base>
using RawListings = v1::Registry::WithRawCallbackMethod_ListKernels<
    v1::Registry::WithRawCallbackMethod_ListInstructions<
        v1::Registry::WithRawCallbackMethod_DescribeFragment<Base>>>;
template <typename Base>
using RawAnswers = v1::Registry::WithRawCallbackMethod_ListDevices<
    v1::Registry::WithRawCallbackMethod_Explain<v1::Registry::WithRawCallbackMethod_GetServerInfo<
        v1::Registry::WithRawCallbackMethod_GetStatistics<Base>>>>;

// What operators ask a server that is short of memory.
bool IsForOperators(Handler handler) {
  return handler == Handler::kGetStatistics || handler == Handler::kGetServerInfo ||
         handler == Handler::kListDevices;
}

void AddLibrary(std::string name, std::string version, v1::GetServerInfoResponse& response) {
  v1::Library* library = response.add_libraries();
  library->set_name(std::move(name));
  library->set_version(std::move(version));
}

void AddLibraries(v1::GetServerInfoResponse& response) {
  AddLibrary("gRPC", grpc::Version(), response);
  AddLibrary("Protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION),
             response);
  for (LibraryVersion& library : CpuLibraries()) {
    AddLibrary(std::move(library.name), std::move(library.version), response);
  }
}

// The optional parts of the contract that this server has: GetServerInfoResponse.features says what
// each of them is.
constexpr const char* kFeatures[] = {
    "batches",          "block-scales",    "checked-answers", "explain",      "fast-accumulation",
    "fragments",        "leases",          "multiply-stream", "narrow-types", "priorities",
    "resident-tensors", "simulated-chips", "sparse-a",        "statistics"};

class RegistryService final : public RawListings<RawAnswers<v1::Registry::Service>> {
 public:
  RegistryService(const std::vector<ServedDevice>& devices, const ProductRunner& runner,
                  const Gate& gate, const Observer& observer, SendWatch& watch, HandlerTimes& times,
                  const Clock& clock, v1::Limits limits)
      : devices_(devices),
        runner_(runner),
        gate_(gate),
        observer_(observer),
        watch_(watch),
        times_(times),
        clock_(clock),
        limits_(std::move(limits)),
        started_ns_(clock.NowNs()),
        started_unix_ns_(absl::GetCurrentTimeNanos()),
        kernels_(ListingOfKernels(devices)),
        unread_(kMaxUnreadBytes) {
    // The index of the names is made now and not in a call.
    FindKernel(Catalog().front().name).IgnoreError();
  }

  grpc::ServerUnaryReactor* ListKernels(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override {
    return Answer<v1::ListKernelsRequest>(
        Handler::kListKernels, *context, *request, *response,
        [this](const v1::ListKernelsRequest& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(grpc::ByteBuffer bytes, gemmd::ListKernels(kernels_, wire));
          return RegistryAnswer{std::move(bytes)};
        });
  }

  grpc::ServerUnaryReactor* ListInstructions(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override {
    return Answer<v1::ListInstructionsRequest>(
        Handler::kListInstructions, *context, *request, *response,
        [this](const v1::ListInstructionsRequest& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(grpc::ByteBuffer bytes, instructions_.List(wire));
          return RegistryAnswer{std::move(bytes)};
        });
  }

  grpc::ServerUnaryReactor* DescribeFragment(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override {
    return Answer<v1::DescribeFragmentRequest>(
        Handler::kDescribeFragment, *context, *request, *response,
        [this](const v1::DescribeFragmentRequest& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(grpc::ByteBuffer bytes, instructions_.Fragment(wire));
          const auto own_bytes = static_cast<int64_t>(bytes.Length());
          return RegistryAnswer{std::move(bytes), own_bytes};
        });
  }

  grpc::ServerUnaryReactor* ListDevices(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override {
    return Answer<v1::ListDevicesRequest>(
        Handler::kListDevices, *context, *request, *response,
        [this](const v1::ListDevicesRequest&) { return AnswerOf(DescribeDevices()); });
  }

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override {
    return Answer<v1::ExplainRequest>(Handler::kExplain, *context, *request, *response,
                                      [&](v1::ExplainRequest& wire) {
                                        return ExplainProduct(*wire.mutable_request(), *context);
                                      });
  }

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return Answer<v1::GetServerInfoRequest>(
        Handler::kGetServerInfo, *context, *request, *response,
        [this](const v1::GetServerInfoRequest&) { return AnswerOf(DescribeServer()); });
  }

  grpc::ServerUnaryReactor* GetStatistics(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return Answer<v1::GetStatisticsRequest>(
        Handler::kGetStatistics, *context, *request, *response,
        [this](const v1::GetStatisticsRequest&) {
          return AnswerOf(
              gemmd::ToWire(observer_.Observe(), clock_.NowNs() - started_ns_, started_unix_ns_));
        });
  }

 private:
  template <typename Request, typename Make>
  grpc::ServerUnaryReactor* Answer(Handler handler, grpc::CallbackServerContext& context,
                                   const grpc::ByteBuffer& request, grpc::ByteBuffer& response,
                                   Make make) {
    const HandlerTiming timing{times_, clock_, handler};
    const HandlerTimer timer = timing.Begin();
    const grpc::ByteBuffer bytes = TakeRequest(request);
    const auto answer = [&]() -> absl::StatusOr<RegistryAnswer> {
      if (!IsForOperators(handler)) RETURN_IF_ERROR(runner_.CheckQuestion());
      Request wire;
      RETURN_IF_ERROR(ReadRequest(bytes, wire));
      return make(wire);
    };
    return AnswerRegistryCall(timing, context, unread_, watch_, answer, response);
  }

  v1::ListDevicesResponse DescribeDevices() const {
    v1::ListDevicesResponse response;
    const Snapshot now = observer_.Observe();
    for (size_t i = 0; i < devices_.size(); ++i) {
      *response.add_devices() = gemmd::ToWire(devices_[i], now.devices[i].load);
    }
    return response;
  }

  absl::StatusOr<RegistryAnswer> ExplainProduct(v1::MultiplyRequest& request,
                                                grpc::CallbackServerContext& context) const {
    ASSIGN_OR_RETURN(const Gate::Caller caller, gate_.CallerOf(context, Role::kRegistry));
    const std::string token = SessionTokenOf(context);
    Product product;
    RETURN_IF_ERROR(ParseWithTensors(runner_.tensors(), {.token = token, .identity = caller.get()},
                                     request, nullptr, product));
    if (caller != nullptr) {
      RETURN_IF_ERROR(RestrictToGrant(caller->grant, devices_, runner_, product));
    }
    ASSIGN_OR_RETURN(const ProductRunner::Placement place, runner_.FindPlace(product));
    const Device& device = *place.served->device;
    const Problem& problem = product.job.problem;
    v1::ExplainResponse response;
    response.set_device(device.info().name);
    const std::vector<const Kernel*> quarantined = place.served->quarantined();
    Constraints constraints = product.constraints;
    constraints.quarantined = quarantined;
    const Selection selection =
        Select(Catalog(device.info().kind), problem, constraints, device.profile());
    RETURN_IF_ERROR(FillExplanation(problem, selection, response));
    for (size_t i = 0; i < selection.candidates.size(); ++i) {
      const Candidate& candidate = selection.candidates[i];
      response.mutable_candidates(static_cast<int>(i))
          ->set_expected_ns(runner_.ExpectedNs(*place.served, *candidate.kernel, problem,
                                               candidate.predicted_ns));
    }
    return AnswerOf(response);
  }

  v1::GetServerInfoResponse DescribeServer() const {
    v1::GetServerInfoResponse response;
    response.set_version(kVersion);
    AddLibraries(response);
    *response.mutable_limits() = limits_;
    for (const char* const feature : kFeatures) response.add_features(feature);
    response.set_default_device(devices_.front().device->info().name);
    response.set_uptime_ns(clock_.NowNs() - started_ns_);
    response.set_draining(observer_.is_draining());
    response.set_unix_ns(absl::GetCurrentTimeNanos());
    return response;
  }

  const std::vector<ServedDevice>& devices_;
  const ProductRunner& runner_;
  const Gate& gate_;
  const Observer& observer_;
  SendWatch& watch_;
  HandlerTimes& times_;
  const Clock& clock_;
  const v1::Limits limits_;
  const int64_t started_ns_;
  const int64_t started_unix_ns_;
  const Listing kernels_;
  InstructionAnswers instructions_;
  UnreadAnswers unread_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRegistryService(const std::vector<ServedDevice>& devices,
                                                   const ProductRunner& runner, const Gate& gate,
                                                   const Observer& observer, SendWatch& watch,
                                                   HandlerTimes& times, const Clock& clock,
                                                   v1::Limits limits) {
  return std::make_unique<RegistryService>(devices, runner, gate, observer, watch, times, clock,
                                           std::move(limits));
}

}  // namespace gemmd
