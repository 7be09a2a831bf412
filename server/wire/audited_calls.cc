// SPDX-License-Identifier: Apache-2.0
#include "server/wire/audited_calls.h"

#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/peer_text.h"
#include "server/system/audit_log.h"
#include "server/system/log.h"
#include "server/wire/self_call.h"

namespace gemmd {
namespace {

namespace experimental = grpc::experimental;

// gRPC destroys it once the call has ended.
class AuditedCall final : public experimental::Interceptor {
 public:
  AuditedCall(const Gate& gate, grpc::ServerContextBase& context, const char* method)
      : identity_(gate.NameOfCaller(context)), peer_(context.peer()), method_(method) {}

  ~AuditedCall() override {
    const std::shared_ptr<spdlog::logger> log = AuditLog();
    if (log == nullptr) return;
    log->info("event=call identity={} peer={} method={} status={}", LogValue(identity_),
              LogValue(peer_), LogValue(Shown(method_)), absl::StatusCodeToString(code_));
  }

  void Intercept(experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      code_ = static_cast<absl::StatusCode>(methods->GetSendStatus().error_code());
    }
    methods->Proceed();
  }

 private:
  const std::string identity_;
  const std::string peer_;
  const std::string method_;
  absl::StatusCode code_ = absl::StatusCode::kCancelled;  // Where nobody was there for a status.
};

class AuditedCalls final : public experimental::ServerInterceptorFactoryInterface {
 public:
  explicit AuditedCalls(const Gate& gate) : gate_(gate) {}

  experimental::Interceptor* CreateServerInterceptor(experimental::ServerRpcInfo* call) override {
    const Requirement requirement = RequirementOf(call->method());
    if (requirement.is_open || requirement.role == Role::kMultiply) return nullptr;
    if (IsOwnCall(*call->server_context())) return nullptr;
    return new AuditedCall(gate_, *call->server_context(), call->method());
  }

 private:
  const Gate& gate_;
};

}  // namespace

void AuditCalls(const Gate& gate, grpc::ServerBuilder& builder) {
  if (AuditLog() == nullptr) return;
  std::vector<std::unique_ptr<experimental::ServerInterceptorFactoryInterface>> all;
  all.push_back(std::make_unique<AuditedCalls>(gate));
  builder.experimental().SetInterceptorCreators(std::move(all));
}

}  // namespace gemmd
