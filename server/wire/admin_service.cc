// SPDX-License-Identifier: Apache-2.0
#include "server/wire/admin_service.h"

#include <string>

#include "absl/strings/match.h"
#include "gemmd/v1/admin.grpc.pb.h"
#include "kernels/text.h"
#include "server/system/log.h"
#include "server/wire/grpc_status.h"

namespace gemmd {
namespace {

absl::Status CheckIsLocal(const std::string& peer) {
  if (absl::StartsWith(peer, "unix:")) return absl::OkStatus();
  return absl::PermissionDeniedError(
      Concat("peer: got ", peer, ", want one of a unix socket (--listen=unix:PATH)"));
}

class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(const std::vector<ServedDevice>& devices) : devices_(devices) {}

  grpc::ServerUnaryReactor* RestartDevice(grpc::CallbackServerContext* context,
                                          const v1::RestartDeviceRequest* request,
                                          v1::RestartDeviceResponse*) override {
    absl::Status status = CheckIsLocal(context->peer());
    if (status.ok()) status = Restart(request->device());
    spdlog::info("event=restart_device device={} status={}", LogValue(request->device()),
                 absl::StatusCodeToString(status.code()));
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

 private:
  absl::Status Restart(const std::string& name) const {
    for (const ServedDevice& served : devices_) {
      if (served.device->info().name == name) return served.device->RestartWorker();
    }
    return absl::NotFoundError(GotWant("device", name, "one that ListDevices names"));
  }

  const std::vector<ServedDevice>& devices_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const std::vector<ServedDevice>& devices) {
  return std::make_unique<AdminService>(devices);
}

}  // namespace gemmd
