// SPDX-License-Identifier: Apache-2.0
#include "server/wire/admin_service.h"

#include <string>

#include "absl/strings/match.h"
#include "gemmd/v1/admin.grpc.pb.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/system/log.h"
#include "server/wire/convert_incident.h"
#include "server/wire/grpc_status.h"

namespace gemmd {
namespace {

// Where callers are known by name, the gate has asked for their role.
absl::Status CheckIsLocal(const Gate& gate, const std::string& peer) {
  if (!gate.is_open()) return absl::OkStatus();
  if (absl::StartsWith(peer, "unix:")) return absl::OkStatus();
  return absl::PermissionDeniedError(
      Concat("peer: got ", peer, ", want one of a unix socket (--listen=unix:PATH)"));
}

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(const std::vector<ServedDevice>& devices, const Gate& gate,
               const IncidentLog& incidents, int64_t max_message_bytes)
      : devices_(devices),
        gate_(gate),
        incidents_(incidents),
        max_message_bytes_(max_message_bytes) {}

  grpc::ServerUnaryReactor* RestartDevice(grpc::CallbackServerContext* context,
                                          const v1::RestartDeviceRequest* request,
                                          v1::RestartDeviceResponse*) override {
    absl::Status status = CheckIsLocal(gate_, context->peer());
    if (status.ok()) status = Restart(request->device());
    spdlog::info("event=restart_device device={} status={}", LogValue(request->device()),
                 absl::StatusCodeToString(status.code()));
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

  grpc::ServerUnaryReactor* ListIncidents(grpc::CallbackServerContext* context,
                                          const v1::ListIncidentsRequest*,
                                          v1::ListIncidentsResponse* response) override {
    const absl::Status status = CheckIsLocal(gate_, context->peer());
    if (status.ok()) {
      for (const IncidentLog::Entry& entry : incidents_.entries()) {
        *response->add_incidents() = ToWire(entry);
      }
      response->set_found(incidents_.found());
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

  grpc::ServerUnaryReactor* GetIncidentProduct(grpc::CallbackServerContext* context,
                                               const v1::GetIncidentProductRequest* request,
                                               v1::GetIncidentProductResponse* response) override {
    absl::Status status = CheckIsLocal(gate_, context->peer());
    if (status.ok()) status = FillProduct(*request, *response);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

 private:
  absl::Status FillProduct(const v1::GetIncidentProductRequest& request,
                           v1::GetIncidentProductResponse& response) const {
    const int64_t id = request.id();
    for (const IncidentLog::Entry& entry : incidents_.entries()) {
      if (entry.incident.id != id) continue;
      ASSIGN_OR_RETURN(*response.mutable_request(), ProductOf(entry, request.without_operands()));
      *response.mutable_incident() = ToWire(entry);
      const auto bytes = static_cast<int64_t>(response.ByteSizeLong());
      if (bytes <= max_message_bytes_) return absl::OkStatus();
      return absl::ResourceExhaustedError(Concat(
          "id: the product takes ", bytes, " bytes, a message holds at most ", max_message_bytes_));
    }
    return absl::NotFoundError(Concat("id: got ", id, ", want one that ListIncidents gives"));
  }

  absl::Status Restart(const std::string& name) const {
    for (const ServedDevice& served : devices_) {
      if (served.device->info().name == name) return served.device->RestartWorker();
    }
    return absl::NotFoundError(GotWant("device", name, "one that ListDevices names"));
  }

  const std::vector<ServedDevice>& devices_;
  const Gate& gate_;
  const IncidentLog& incidents_;
  const int64_t max_message_bytes_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const std::vector<ServedDevice>& devices,
                                                const Gate& gate, const IncidentLog& incidents,
                                                int64_t max_message_bytes) {
  return std::make_unique<AdminService>(devices, gate, incidents, max_message_bytes);
}

}  // namespace gemmd
