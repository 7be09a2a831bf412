// SPDX-License-Identifier: Apache-2.0
#include "server/wire/registry_service.h"

#include <fnmatch.h>
#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/catalog.h"
#include "kernels/cpu/host.h"
#include "kernels/status_macros.h"
#include "server/system/version.h"
#include "server/wire/convert.h"
#include "server/wire/convert_instruction.h"
#include "server/wire/convert_registry.h"
#include "server/wire/convert_statistics.h"
#include "server/wire/grpc_status.h"

namespace gemmd {
namespace {

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

void AddLibrary(std::string name, std::string version, v1::GetServerInfoResponse& response) {
  v1::Library* library = response.add_libraries();
  library->set_name(std::move(name));
  library->set_version(std::move(version));
}

absl::Status ExplainOn(const ProductRunner& runner, const v1::MultiplyRequest& request,
                       v1::ExplainResponse& response) {
  ASSIGN_OR_RETURN(const ParsedRequest parsed, ParseMultiply(request, OperandBytes::kIgnored));
  ASSIGN_OR_RETURN(const ProductRunner::Placement place, runner.FindPlace(parsed));
  const Device& device = *place.served->device;
  const Problem& problem = parsed.job.problem;
  response.set_device(device.info().name);
  return FillExplanation(
      problem, Select(Catalog(device.info().kind), problem, parsed.constraints, device.profile()),
      response);
}

class RegistryService final : public v1::Registry::CallbackService {
 public:
  RegistryService(const std::vector<ServedDevice>& devices, const ProductRunner& runner,
                  const Observer& observer, const Clock& clock, v1::Limits limits)
      : devices_(devices),
        runner_(runner),
        observer_(observer),
        clock_(clock),
        limits_(std::move(limits)),
        started_ns_(clock.NowNs()),
        started_unix_ns_(absl::GetCurrentTimeNanos()) {}

  grpc::ServerUnaryReactor* ListKernels(grpc::CallbackServerContext* context,
                                        const v1::ListKernelsRequest* request,
                                        v1::ListKernelsResponse* response) override {
    for (const Kernel& kernel : Catalog()) {
      const std::string name(kernel.name);
      if (!request->name_pattern().empty() &&
          fnmatch(request->name_pattern().c_str(), name.c_str(), 0) != 0) {
        continue;
      }
      v1::Kernel* wire = response->add_kernels();
      *wire = gemmd::ToWire(kernel);
      for (const ServedDevice& served : devices_) {
        *wire->add_availability() = AvailabilityOn(served, kernel);
      }
    }
    return Answer(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* ListDevices(grpc::CallbackServerContext* context,
                                        const v1::ListDevicesRequest*,
                                        v1::ListDevicesResponse* response) override {
    const Snapshot now = observer_.Observe();
    for (size_t i = 0; i < devices_.size(); ++i) {
      *response->add_devices() = gemmd::ToWire(devices_[i], now.devices[i].load);
    }
    return Answer(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainResponse* response) override {
    return Answer(context, ExplainOn(runner_, request->request(), *response));
  }

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest*,
                                          v1::GetServerInfoResponse* response) override {
    response->set_version(kVersion);
    AddLibrary("gRPC", grpc::Version(), *response);
    AddLibrary("Protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION),
               *response);
    for (LibraryVersion& library : CpuLibraries()) {
      AddLibrary(std::move(library.name), std::move(library.version), *response);
    }
    *response->mutable_limits() = limits_;
    response->add_features("multiply-stream");
    response->set_default_device(devices_.front().device->info().name);
    response->set_uptime_ns(clock_.NowNs() - started_ns_);
    response->set_draining(observer_.is_draining());
    return Answer(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* GetStatistics(grpc::CallbackServerContext* context,
                                          const v1::GetStatisticsRequest*,
                                          v1::GetStatisticsResponse* response) override {
    *response = gemmd::ToWire(observer_.Observe(), clock_.NowNs() - started_ns_, started_unix_ns_);
    return Answer(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* ListInstructions(grpc::CallbackServerContext* context,
                                             const v1::ListInstructionsRequest* request,
                                             v1::ListInstructionsResponse* response) override {
    return Answer(context, gemmd::ListInstructions(*request, *response));
  }

  grpc::ServerUnaryReactor* DescribeFragment(grpc::CallbackServerContext* context,
                                             const v1::DescribeFragmentRequest* request,
                                             v1::DescribeFragmentResponse* response) override {
    return Answer(context, gemmd::DescribeFragment(*request, *response));
  }

 private:
  const std::vector<ServedDevice>& devices_;
  const ProductRunner& runner_;
  const Observer& observer_;
  const Clock& clock_;
  const v1::Limits limits_;
  const int64_t started_ns_;
  const int64_t started_unix_ns_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRegistryService(const std::vector<ServedDevice>& devices,
                                                   const ProductRunner& runner,
                                                   const Observer& observer, const Clock& clock,
                                                   v1::Limits limits) {
  return std::make_unique<RegistryService>(devices, runner, observer, clock, std::move(limits));
}

}  // namespace gemmd
