// SPDX-License-Identifier: Apache-2.0
#include "server/wire/gate.h"

#include <grpc/grpc_security.h>
#include <grpcpp/support/server_interceptor.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/system/log.h"
#include "server/system/sockets.h"
#include "server/wire/health_service.h"

namespace gemmd {

namespace {

constexpr char kUserProperty[] = "gemmd_user";
constexpr char kOperatorProperty[] = "gemmd_operator";     // Set only for operators.
constexpr char kBadTokensProperty[] = "gemmd_bad_tokens";  // The bytes of a TokenBucket.

constexpr MethodRule OperandsOf(std::string_view prefix, Role role) {
  return {.prefix = prefix,
          .role = role,
          .kind = MessageKind::kOperands,
          .max_bytes = MethodRule::kUnlimited};
}

// For requests that other projects' tools send.
constexpr int64_t kMaxOfTools = int64_t{64} << 10;

// Probes need no token to ask whether the server is alive.
constexpr MethodRule Probe(std::string_view prefix, int64_t max_bytes = MethodRule().max_bytes) {
  return {.prefix = prefix,
          .role = std::nullopt,
          .kind = MessageKind::kOpenQuestion,
          .max_bytes = max_bytes,
          .max_declared_bytes = kMaxOfTools};
}

// The first whose prefix matches decides, and the last matches all paths.
constexpr MethodRule kRules[] = {
    OperandsOf("/gemmd.v1.Gemm/", Role::kMultiply),
    OperandsOf("/gemmd.v1.Tensors/Put", Role::kTensors),
    {"/gemmd.v1.Tensors/", Role::kTensors},
    {"/gemmd.v1.Registry/GetStatistics", Role::kStatistics},
    // The product, without its operands but with a factor for each row and column.
    {.prefix = "/gemmd.v1.Registry/Explain", .role = Role::kRegistry, .max_bytes = 1 << 20},
    {"/gemmd.v1.Registry/", Role::kRegistry},
    {"/gemmd.v1.Admin/", Role::kAdminister},
    Probe("/inference.GRPCInferenceService/ServerLive"),
    Probe("/inference.GRPCInferenceService/ServerReady"),
    {"/inference.GRPCInferenceService/ServerMetadata", Role::kRegistry},
    {"/inference.GRPCInferenceService/ModelReady", Role::kRegistry},
    {"/inference.GRPCInferenceService/ModelMetadata", Role::kRegistry},
    {"/inference.GRPCInferenceService/ModelConfig", Role::kRegistry},
    {"/inference.GRPCInferenceService/RepositoryIndex", Role::kRegistry},
    {"/inference.GRPCInferenceService/ModelStatistics", Role::kStatistics},
    OperandsOf("/inference.GRPCInferenceService/ModelInfer", Role::kMultiply),
    OperandsOf("/inference.GRPCInferenceService/ModelStreamInfer", Role::kMultiply),
    {"/inference.GRPCInferenceService/", Role::kMultiply},
    {.prefix = "/grpc.reflection.",
     .role = Role::kReflection,
     .max_bytes = kMaxOfTools,
     .max_declared_bytes = kMaxOfTools},
    Probe("/grpc.health.v1.Health/", kMaxOfTools),
    {},
};

absl::Status Unknown() {
  return absl::UnauthenticatedError(
      "caller: got an unknown one, want a known certificate or token, or a user in the rules");
}

absl::Status Unexamined() {
  return absl::ResourceExhaustedError(
      "caller: got a signed token after too many bad ones on this connection, want another "
      "connection, or a retry after a second");
}

// What a caller that is not identified may learn of the reason.
absl::Status StatusForCaller(const absl::Status& reason) {
  return absl::IsResourceExhausted(reason) ? Unexamined() : Unknown();
}

absl::Status Forbidden() {
  return absl::PermissionDeniedError(
      "method: got one that the rules do not allow this caller, want another");
}

void AppendProperties(const grpc_auth_context& connection, const char* name,
                      std::vector<std::string_view>& values) {
  grpc_auth_property_iterator each = grpc_auth_context_find_properties_by_name(&connection, name);
  while (const grpc_auth_property* const property = grpc_auth_property_iterator_next(&each)) {
    values.emplace_back(property->value, property->value_length);
  }
}

void Audit(std::string_view path, std::string_view identity, std::string_view reason) {
  const std::shared_ptr<spdlog::logger> log = AuditLog();
  if (log == nullptr) return;
  log->info("event=call_refused identity={} method={} reason={}", LogValue(identity),
            LogValue(Shown(path)), LogValue(reason));
}

// gRPC has copied the property's value into memory from malloc, which is aligned for any type, and
// never changes it.
TokenBucket* FindBadTokens(const grpc_auth_context& connection) {
  grpc_auth_property_iterator each =
      grpc_auth_context_find_properties_by_name(&connection, kBadTokensProperty);
  const grpc_auth_property* const found = grpc_auth_property_iterator_next(&each);
  return found == nullptr ? nullptr : reinterpret_cast<TokenBucket*>(found->value);
}

struct ReleaseConnection {
  void operator()(grpc_auth_context* connection) const { grpc_auth_context_release(connection); }
};

}  // namespace

const MethodRule& RuleOf(std::string_view path) {
  return *std::ranges::find_if(
      kRules, [path](const MethodRule& rule) { return path.starts_with(rule.prefix); });
}

uint64_t ConnectionOf(grpc::CallbackServerContext& context) {
  const std::unique_ptr<grpc_auth_context, ReleaseConnection> connection(
      grpc_call_auth_context(context.c_call()));
  if (connection == nullptr) return std::hash<std::string>()(context.peer());
  return std::hash<const void*>()(connection.get());
}

std::vector<std::string_view> NamesOf(const grpc_auth_context& connection) {
  std::vector<std::string_view> names;
  AppendProperties(connection, GRPC_PEER_URI_PROPERTY_NAME, names);
  AppendProperties(connection, GRPC_PEER_DNS_PROPERTY_NAME, names);
  return names;
}

absl::Status Gate::Admit(std::string_view path, const Evidence& evidence) const {
  if (trust_ == nullptr) return absl::OkStatus();
  const MethodRule& rule = RuleOf(path);
  if (rule.is_open()) return absl::OkStatus();
  const absl::StatusOr<Caller> caller = trust_->Identify(evidence);
  if (!caller.ok()) {
    Audit(path, evidence.user, std::string(caller.status().message()));
    return StatusForCaller(caller.status());
  }
  if (rule.role && (*caller)->grant.roles.Has(*rule.role)) return absl::OkStatus();
  Audit(path, (*caller)->name, "the rules do not allow it");
  return Forbidden();
}

absl::StatusOr<Gate::Caller> Gate::Identify(grpc::ServerContextBase& context) const {
  const std::unique_ptr<grpc_auth_context, ReleaseConnection> connection(
      grpc_call_auth_context(context.c_call()));
  if (connection == nullptr) return Unknown();
  Evidence evidence;
  const auto [first, last] = context.client_metadata().equal_range("authorization");
  for (auto value = first; value != last; ++value) {
    evidence.authorization.emplace_back(value->second.data(), value->second.size());
  }
  std::string user;
  evidence.bad_tokens = FindBadTokens(*connection);
  if (evidence.authorization.empty()) {
    evidence.names = NamesOf(*connection);
    user = UserOf(*connection);
    evidence.user = user;
  }
  absl::StatusOr<Caller> caller = trust_->Identify(evidence);
  if (!caller.ok()) return StatusForCaller(caller.status());
  return caller;
}

absl::StatusOr<Gate::Caller> Gate::CallerOf(grpc::CallbackServerContext& context, Role role) const {
  if (trust_ == nullptr) return nullptr;
  ASSIGN_OR_RETURN(Caller caller, Identify(context));
  if (!caller->grant.roles.Has(role)) return Forbidden();
  return caller;
}

std::string Gate::NameOfCaller(grpc::ServerContextBase& context) const {
  if (trust_ == nullptr) return "";
  const absl::StatusOr<Caller> caller = Identify(context);
  return caller.ok() ? (*caller)->name : "";
}

std::string Gate::FlowNameOf(grpc::ServerContextBase& context) const {
  std::string name = NameOfCaller(context);
  return name.empty() ? std::string(HostOf(PeerOf(context))) : name;
}

std::string Gate::PeerOf(grpc::ServerContextBase& context) const {
  std::string peer = context.peer();
  if (!peer.starts_with("unix")) return peer;
  const std::unique_ptr<grpc_auth_context, ReleaseConnection> connection(
      grpc_call_auth_context(context.c_call()));
  return connection == nullptr ? "unix:" : Concat("unix:", UserOf(*connection));
}

void Gate::NoteUser(grpc_auth_context& connection, const std::string& user,
                    bool is_operator) const {
  MutexLock lock(&users_mutex_);
  grpc_auth_property_iterator each =
      grpc_auth_context_find_properties_by_name(&connection, kUserProperty);
  if (grpc_auth_property_iterator_next(&each) != nullptr) return;
  if (is_operator) grpc_auth_context_add_property(&connection, kOperatorProperty, "", 0);
  grpc_auth_context_add_property(&connection, kUserProperty, user.data(), user.size());
}

TokenBucket* Gate::BadTokensOf(grpc_auth_context& connection) const {
  MutexLock lock(&users_mutex_);
  if (TokenBucket* const bad = FindBadTokens(connection)) return bad;
  constexpr char kNone[sizeof(TokenBucket)] = {};
  grpc_auth_context_add_property(&connection, kBadTokensProperty, kNone, sizeof(kNone));
  return FindBadTokens(connection);
}

TokenBucket* Gate::BadTokensOf(grpc::AuthContext& connection) const {
  MutexLock lock(&users_mutex_);
  std::vector<grpc::string_ref> values = connection.FindPropertyValues(kBadTokensProperty);
  if (values.empty()) {
    constexpr char kNone[sizeof(TokenBucket)] = {};
    connection.AddProperty(kBadTokensProperty, {kNone, sizeof(kNone)});
    values = connection.FindPropertyValues(kBadTokensProperty);
  }
  // As in FindBadTokens: points to gRPC's own copy of the property.
  return values.empty() ? nullptr
                        : reinterpret_cast<TokenBucket*>(const_cast<char*>(values.front().data()));
}

// Only called after NoteUser for the same call, and after the first note nothing is added.
std::string Gate::UserOf(const grpc_auth_context& connection) {
  grpc_auth_property_iterator each =
      grpc_auth_context_find_properties_by_name(&connection, kUserProperty);
  const grpc_auth_property* const user = grpc_auth_property_iterator_next(&each);
  return user == nullptr ? "" : std::string(user->value, user->value_length);
}

absl::Status Gate::CheckOperator(grpc::ServerContextBase& context) const {
  const std::unique_ptr<grpc_auth_context, ReleaseConnection> connection(
      grpc_call_auth_context(context.c_call()));
  if (connection != nullptr) {
    grpc_auth_property_iterator each =
        grpc_auth_context_find_properties_by_name(connection.get(), kOperatorProperty);
    if (grpc_auth_property_iterator_next(&each) != nullptr) return absl::OkStatus();
  }
  const std::string user = connection == nullptr ? "" : UserOf(*connection);
  return absl::PermissionDeniedError(
      GotWant("caller", user.empty() ? "a user that is not known" : user,
              Concat("an operator: root, the user of the daemon (", kUserPrefix, geteuid(),
                     ") or a member of the group of --operators-group")));
}

bool Gate::TellsApart(const std::string& user) const {
  if (trust_ == nullptr) return true;
  const absl::StatusOr<Caller> caller = trust_->Identify({.user = user});
  return caller.ok() && (*caller)->name == user;
}

namespace {

namespace experimental = grpc::experimental;

// gRPC destroys this object when the call has ended.
class AuditedCall final : public experimental::Interceptor {
 public:
  AuditedCall(const Gate& gate, grpc::ServerContextBase& context, const char* method)
      : identity_(gate.NameOfCaller(context)), peer_(gate.PeerOf(context)), method_(method) {}

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
  absl::StatusCode code_ = absl::StatusCode::kCancelled;  // If the client had gone before it got a
                                                          // status.
};

class AuditedCalls final : public experimental::ServerInterceptorFactoryInterface {
 public:
  explicit AuditedCalls(const Gate& gate) : gate_(gate) {}

  experimental::Interceptor* CreateServerInterceptor(experimental::ServerRpcInfo* call) override {
    const MethodRule& rule = RuleOf(call->method());
    if (rule.is_open() || rule.role == Role::kMultiply) return nullptr;
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
