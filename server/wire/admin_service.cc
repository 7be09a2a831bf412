// SPDX-License-Identifier: Apache-2.0
#include "server/wire/admin_service.h"

#include <string>

#include "absl/strings/match.h"
#include "gemmd/v1/admin.grpc.pb.h"
#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/system/log.h"
#include "server/wire/convert_incident.h"
#include "server/wire/read_request.h"
#include "server/wire/registry_call.h"

namespace gemmd {
namespace {

// What answers hold for readers that do not read, beside the operands of one incident.
constexpr int64_t kMaxUnreadBytes = int64_t{1} << 20;

absl::Status CheckIsLocal(const std::string& peer) {
  if (absl::StartsWith(peer, "unix:")) return absl::OkStatus();
  return absl::PermissionDeniedError(
      Concat("peer: got ", peer, ", want one of a unix socket (--listen=unix:PATH)"));
}

// Whether a server that is short of memory answers. A product of an incident has its operands; the
// others are small, and a new worker may be what is needed.
bool IsAdminWithoutMemory(Handler handler) { return handler != Handler::kGetIncidentProduct; }

// Every method takes and gives bytes.
template <typename Base>
using RawAdmin =
    v1::Admin::WithRawCallbackMethod_RestartDevice<v1::Admin::WithRawCallbackMethod_ListIncidents<
        v1::Admin::WithRawCallbackMethod_GetIncidentProduct<Base>>>;

class AdminService final : public RawAdmin<v1::Admin::Service> {
 public:
  AdminService(const std::vector<ServedDevice>& devices, const ProductRunner& runner,
               const Gate& gate, const IncidentLog& incidents, HandlerTimes& times,
               const Clock& clock, SendWatch& watch, int64_t max_message_bytes)
      : devices_(devices),
        runner_(runner),
        gate_(gate),
        incidents_(incidents),
        times_(times),
        clock_(clock),
        watch_(watch),
        max_message_bytes_(max_message_bytes),
        unread_(incidents.most_kept_bytes() + kMaxUnreadBytes) {}

  grpc::ServerUnaryReactor* RestartDevice(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return Answer<v1::RestartDeviceRequest>(
        Handler::kRestartDevice, /*is_for_locals=*/true, *context, *request, *response,
        [this](const v1::RestartDeviceRequest& wire) -> absl::StatusOr<RegistryAnswer> {
          const absl::Status status = Restart(wire.device());
          spdlog::info("event=restart_device device={} status={}", LogValue(Shown(wire.device())),
                       absl::StatusCodeToString(status.code()));
          RETURN_IF_ERROR(status);
          return AnswerOf(v1::RestartDeviceResponse());
        });
  }

  grpc::ServerUnaryReactor* ListIncidents(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return Answer<v1::ListIncidentsRequest>(
        Handler::kListIncidents, gate_.is_open(), *context, *request, *response,
        [this](const v1::ListIncidentsRequest&) -> absl::StatusOr<RegistryAnswer> {
          v1::ListIncidentsResponse incidents;
          for (const IncidentLog::Entry& entry : incidents_.entries()) {
            *incidents.add_incidents() = ToWire(entry);
          }
          incidents.set_found(incidents_.found());
          return AnswerOf(incidents);
        });
  }

  grpc::ServerUnaryReactor* GetIncidentProduct(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) override {
    return Answer<v1::GetIncidentProductRequest>(
        Handler::kGetIncidentProduct, gate_.is_open(), *context, *request, *response,
        [this](const v1::GetIncidentProductRequest& wire) -> absl::StatusOr<RegistryAnswer> {
          ASSIGN_OR_RETURN(const v1::GetIncidentProductResponse product,
                           FindProduct(incidents_.entries(), wire, max_message_bytes_));
          return AnswerOf(product);
        });
  }

 private:
  // Where callers are known by name, the gate has asked for their role. Who should be local and is
  // not is answered before anything of the request is looked at.
  template <typename Wire, typename Function>
  grpc::ServerUnaryReactor* Answer(Handler handler, bool is_for_locals,
                                   grpc::CallbackServerContext& context,
                                   const grpc::ByteBuffer& request, grpc::ByteBuffer& response,
                                   Function answer) {
    const HandlerTiming timing{times_, clock_, handler};
    const HandlerTimer timer = timing.Begin();
    const grpc::ByteBuffer bytes = TakeRequest(request);
    return AnswerRegistryCall(
        timing, context, unread_, watch_,
        [&]() -> absl::StatusOr<RegistryAnswer> {
          if (is_for_locals) RETURN_IF_ERROR(CheckIsLocal(context.peer()));
          if (!IsAdminWithoutMemory(handler)) RETURN_IF_ERROR(runner_.CheckQuestion());
          Wire wire;
          RETURN_IF_ERROR(ReadRequest(bytes, wire));
          return answer(wire);
        },
        response);
  }

  absl::Status Restart(const std::string& name) const {
    RETURN_IF_ERROR(CheckNameLength("device", name));
    for (const ServedDevice& served : devices_) {
      if (served.device->info().name == name) return served.device->RestartWorker();
    }
    return absl::NotFoundError(GotWant("device", Shown(name), "one that ListDevices names"));
  }

  const std::vector<ServedDevice>& devices_;
  const ProductRunner& runner_;
  const Gate& gate_;
  const IncidentLog& incidents_;
  HandlerTimes& times_;
  const Clock& clock_;
  SendWatch& watch_;
  const int64_t max_message_bytes_;
  UnreadAnswers unread_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const std::vector<ServedDevice>& devices,
                                                const ProductRunner& runner, const Gate& gate,
                                                const IncidentLog& incidents, HandlerTimes& times,
                                                const Clock& clock, SendWatch& watch,
                                                int64_t max_message_bytes) {
  return std::make_unique<AdminService>(devices, runner, gate, incidents, times, clock, watch,
                                        max_message_bytes);
}

}  // namespace gemmd
