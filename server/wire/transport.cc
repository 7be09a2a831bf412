// SPDX-License-Identifier: Apache-2.0
#include "server/wire/transport.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "proto/deadline_after.h"
#include "server/system/files.h"
#include "server/system/log.h"
#include "server/system/resources.h"
#include "server/wire/calls.h"
#include "server/wire/connection_acceptor.h"

#ifdef GEMMD_GRPC_HAS_LOG_FUNCTION
#include <grpc/support/log.h>
#else
#include "absl/base/no_destructor.h"
#include "absl/log/globals.h"
#include "absl/log/initialize.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#endif
#ifdef GEMMD_PROTOBUF_HAS_LOG_HANDLER
#include <google/protobuf/stubs/logging.h>
#endif

namespace gemmd {

namespace {

constexpr std::string_view kPathKey = ":path";
constexpr std::string_view kAuthorizationKey = "authorization";

std::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

// The state of a metadata processor.
struct Post {
  const Gate& gate;
  const ConnectionUser* user;  // Null if it is not known.
};

// Removes no metadata: handlers read them too.
void ProcessPlain(void* state, grpc_auth_context* connection, const grpc_metadata* metadata,
                  size_t count, grpc_process_auth_metadata_done_cb done, void* user_data) {
  const Post& post = *static_cast<const Post*>(state);
  std::string_view path;
  Evidence evidence;
  for (size_t i = 0; i < count; ++i) {
    const std::string_view key = View(metadata[i].key);
    if (key == kPathKey) path = View(metadata[i].value);
    if (key == kAuthorizationKey) evidence.authorization.push_back(View(metadata[i].value));
  }
  if (post.user != nullptr) {
    evidence.user = post.user->name;
    post.gate.NoteUser(*connection, post.user->name, post.user->is_operator);
  }
  if (!post.gate.is_open()) evidence.bad_tokens = post.gate.BadTokensOf(*connection);
  const grpc::Status status = ToGrpcStatus(post.gate.Admit(path, evidence));
  done(user_data, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.error_code()),
       status.ok() ? nullptr : status.error_message().c_str());
}

void DeletePost(void* state) { delete static_cast<Post*>(state); }

grpc_server_credentials* PlainWithGate(const Gate& gate, const ConnectionUser* user) {
  grpc_server_credentials* const credentials = grpc_insecure_server_credentials_create();
  grpc_server_credentials_set_auth_metadata_processor(
      credentials, {.process = ProcessPlain, .destroy = DeletePost, .state = new Post{gate, user}});
  return credentials;
}

#ifdef GEMMD_GRPC_CREDENTIALS_ADD_PORTS
class PlainCredentials final : public grpc::ServerCredentials {
 public:
  explicit PlainCredentials(grpc_server_credentials* core) : core_(core) {}
  ~PlainCredentials() override { grpc_server_credentials_release(core_); }

  // Not supported: these credentials have a processor of their own.
  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), core_);
  }

  grpc_server_credentials* const core_;
};
#else
class PlainCredentials final : public grpc::ServerCredentials {
 public:
  explicit PlainCredentials(grpc_server_credentials* core) : grpc::ServerCredentials(core) {}

  // Not supported: these credentials have a processor of their own.
  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}
};
#endif

class Processor final : public grpc::AuthMetadataProcessor {
 public:
  explicit Processor(const Gate& gate) : gate_(gate) {}

  // Takes so little time that it may run on gRPC's own thread.
  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* connection,
                       OutputMetadata* /*consumed*/, OutputMetadata* /*response*/) override {
    Evidence evidence;
    evidence.bad_tokens = gate_.BadTokensOf(*connection);
    const auto [first, last] =
        metadata.equal_range({kAuthorizationKey.data(), kAuthorizationKey.size()});
    for (auto value = first; value != last; ++value) {
      evidence.authorization.push_back(View(value->second));
    }
    for (const char* const property : {GRPC_PEER_URI_PROPERTY_NAME, GRPC_PEER_DNS_PROPERTY_NAME}) {
      for (const grpc::string_ref& name : connection->FindPropertyValues(property)) {
        evidence.names.push_back(View(name));
      }
    }
    const auto path = metadata.find({kPathKey.data(), kPathKey.size()});
    return ToGrpcStatus(
        gate_.Admit(path == metadata.end() ? std::string_view() : View(path->second), evidence));
  }

 private:
  const Gate& gate_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> GuardedPlainCredentials(const Gate& gate,
                                                                 const ConnectionUser* user) {
  // Without a processor, calls take less time.
  if (gate.is_open() && user == nullptr) return grpc::InsecureServerCredentials();
  return std::make_shared<PlainCredentials>(PlainWithGate(gate, user));
}

std::shared_ptr<grpc::ServerCredentials> Guarded(
    std::shared_ptr<grpc::ServerCredentials> credentials, const Gate& gate) {
  if (!gate.is_open()) credentials->SetAuthMetadataProcessor(std::make_shared<Processor>(gate));
  return credentials;
}

#if __has_include(<grpcpp/passive_listener.h>)
GrpcListener::GrpcListener(std::shared_ptr<grpc::ServerCredentials> credentials,
                           grpc::ServerBuilder& builder) {
  builder.experimental().AddPassiveListener(std::move(credentials), listener_);
}

void GrpcListener::Give(int descriptor) const {
  const absl::Status given = listener_->AcceptConnectedFd(descriptor);
  if (!given.ok()) spdlog::debug("event=connection status={}", LogValue(given.ToString()));
}
#else
GrpcListener::GrpcListener(std::shared_ptr<grpc::ServerCredentials> credentials,
                           grpc::ServerBuilder& builder)
    : listener_(builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          std::move(credentials))) {}

void GrpcListener::Give(int descriptor) const {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.fd = descriptor;
  listener_->HandleNewConnection(&connection);
}
#endif

void GrpcAcceptors::Add(ConnectionKind kind, std::shared_ptr<grpc::ServerCredentials> credentials,
                        grpc::ServerBuilder& builder) {
  all_.emplace(kind, GrpcListener(std::move(credentials), builder));
}

void GrpcAcceptors::Give(ConnectionKind kind, int descriptor) const {
  all_.at(kind).Give(descriptor);
}

bool IsOperator(uid_t user, absl::Span<const gid_t> groups, uid_t own,
                std::optional<gid_t> operators) {
  if (user == 0 || user == own) return true;
  return operators && std::find(groups.begin(), groups.end(), *operators) != groups.end();
}

namespace {

// The supplementary groups of the process that opened the other end; empty if they are not known.
std::vector<gid_t> MoreGroupsOf(int descriptor) {
  std::vector<gid_t> groups(32);
  while (true) {
    auto bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    const bool is_known =
        getsockopt(descriptor, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) == 0;
    const size_t count = bytes / sizeof(gid_t);
    if (!is_known && (errno != ERANGE || count <= groups.size())) return {};
    groups.resize(count);
    if (is_known) return groups;
  }
}

}  // namespace

ConnectionUser UserOf(int descriptor, std::optional<gid_t> operators) {
  ucred user = {};
  socklen_t bytes = sizeof(user);
  if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &user, &bytes) != 0) return {};
  std::vector<gid_t> groups = MoreGroupsOf(descriptor);
  groups.push_back(user.gid);
  return {.name = Concat(kUserPrefix, user.uid),
          .is_operator = IsOperator(user.uid, groups, geteuid(), operators)};
}

void UserAcceptors::AddTo(grpc::ServerBuilder& builder) {
  others_.emplace(GuardedPlainCredentials(gate_, nullptr), builder);
  other_operators_.user.is_operator = true;
  const auto add = [&](Place& place) {
    place.listener.emplace(GuardedPlainCredentials(gate_, &place.user), builder);
  };
  add(other_operators_);
  for (Place& place : places_) add(place);
}

const GrpcListener& UserAcceptors::ListenerOf(const ConnectionUser& user) {
  const GrpcListener& others = user.is_operator ? *other_operators_.listener : *others_;
  if (user.name.empty() || !gate_.TellsApart(user.name)) return others;
  MutexLock lock(&mutex_);
  const std::pair key(user.name, user.is_operator);
  auto known = places_of_users_.find(key);
  if (known == places_of_users_.end()) {
    if (places_of_users_.size() == places_.size()) return others;
    known = places_of_users_.emplace(key, places_of_users_.size()).first;
    places_[known->second].user = user;
  }
  return *places_[known->second].listener;
}

void UserAcceptors::Give(int descriptor) {
  ListenerOf(UserOf(descriptor, operators_)).Give(descriptor);
}

namespace {

absl::Status AddMilliseconds(std::string_view option, const char* argument, absl::Duration value,
                             grpc::ServerBuilder& builder) {
  const int64_t milliseconds = absl::ToInt64Milliseconds(value);
  if (milliseconds < 1 || milliseconds > std::numeric_limits<int>::max()) {
    return Invalid(option, absl::FormatDuration(value), "from 1ms to 24 days");
  }
  builder.AddChannelArgument(argument, static_cast<int>(milliseconds));
  return absl::OkStatus();
}

std::string SystemError() { return std::error_code(errno, std::generic_category()).message(); }

absl::Status CheckWhichFiles(const TransportOptions& options, const std::string& metrics_listen) {
  const CertificateFiles& files = options.certificates;
  const auto missing = [](std::string_view option, const std::string& address) {
    return Invalid(option, "none", Concat("a file, for ", address));
  };
  bool has_tls = false;
  bool has_mtls = false;
  std::vector<std::string> addresses = options.listen;
  addresses.push_back(metrics_listen);
  for (const std::string& address : addresses) {
    const ConnectionKind kind = ConnectionKindOf(address);
    if (kind != ConnectionKind::kTls && kind != ConnectionKind::kMtls) continue;
    if (files.certificate.empty()) return missing("tls-cert", address);
    if (files.key.empty()) return missing("tls-key", address);
    has_tls = true;
    if (kind != ConnectionKind::kMtls) continue;
    if (files.client_ca.empty()) return missing("client-ca", address);
    has_mtls = true;
  }
  // An operator who names a certificate and forgets the prefix would serve without encryption.
  const bool has_any = !files.certificate.empty() || !files.key.empty();
  if (has_any && !has_tls) {
    return Invalid(
        files.certificate.empty() ? "tls-key" : "tls-cert",
        files.certificate.empty() ? files.key : files.certificate,
        "none, since neither --listen nor --metrics-listen has an address with tls: or mtls:");
  }
  if (!files.client_crl.empty() && files.client_ca.empty()) {
    return missing("client-ca", Concat("--client-crl=", files.client_crl));
  }
  if (!files.client_ca.empty() && !has_mtls) {
    return Invalid("client-ca", files.client_ca,
                   "none, since neither --listen nor --metrics-listen has an address with mtls:");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ConfigureTransport(const TransportOptions& options, const ReceiveQuota& quota,
                                grpc::ServerBuilder& builder) {
  if (options.max_message_bytes < 1 ||
      options.max_message_bytes > std::numeric_limits<int>::max()) {
    return Invalid("max-message-bytes", options.max_message_bytes, "from 1 to 2^31-1");
  }
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));

  // A compressed message is checked against the limit only after it was decompressed, so none is
  // accepted.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);

  // Without this, a second daemon would share the port silently.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);

  RETURN_IF_ERROR(AddMilliseconds("handshake-timeout", GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                                  options.handshake_timeout, builder));
  RETURN_IF_ERROR(AddMilliseconds("max-connection-idle", GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                                  options.max_connection_idle, builder));
  RETURN_IF_ERROR(AddMilliseconds("max-connection-age", GRPC_ARG_MAX_CONNECTION_AGE_MS,
                                  options.max_connection_age, builder));
  RETURN_IF_ERROR(AddMilliseconds("max-connection-age-grace", GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                                  options.max_connection_age_grace, builder));
  RETURN_IF_ERROR(AddMilliseconds("keepalive-time", GRPC_ARG_KEEPALIVE_TIME_MS,
                                  options.keepalive_time, builder));
  RETURN_IF_ERROR(AddMilliseconds("keepalive-timeout", GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                                  options.keepalive_timeout, builder));
  // gRPC 1.75 heeds this one instead. It is not in gRPC's headers.
  RETURN_IF_ERROR(AddMilliseconds("keepalive-timeout", "grpc.http2.ping_timeout_ms",
                                  options.keepalive_timeout, builder));
  RETURN_IF_ERROR(AddMilliseconds("min-ping-interval",
                                  GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                                  options.min_ping_interval, builder));

  builder.SetResourceQuota(quota.of_grpc());
  return absl::OkStatus();
}

absl::Status CheckTls(const TransportOptions& options, const std::string& metrics_listen) {
  RETURN_IF_ERROR(CheckWhichFiles(options, metrics_listen));
  if (options.certificates.certificate.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const CertificateBytes key_pair, ReadKeyPair(options.certificates));
  RETURN_IF_ERROR(CheckKeyPair(key_pair, options.certificates).status());
  ASSIGN_OR_RETURN(const CertificateBytes clients, ReadClientTrust(options.certificates));
  return CheckClientTrust(clients, options.certificates).status();
}

absl::Status CheckAddress(const std::string& address) {
  absl::string_view path = address;
  if (!absl::ConsumePrefix(&path, "unix:")) return absl::OkStatus();
  absl::ConsumePrefix(&path, "//");  // unix:///absolute/path
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(name.sun_path)) {
    return Invalid("listen", address,
                   Concat("a path of 1 to ", sizeof(name.sun_path) - 1, " bytes"));
  }
  path.copy(name.sun_path, path.size());
  const FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.is_open()) return absl::UnavailableError(Concat("listen: ", SystemError()));
  const auto* const given = reinterpret_cast<const sockaddr*>(&name);
  const int error = connect(probe.get(), given, sizeof(name)) == 0 ? 0 : errno;
  // Nobody listens there, or there is no such path. Any other obstacle shows when the socket is
  // opened.
  if (error == ECONNREFUSED || error == ENOENT || error == ENOTDIR) return absl::OkStatus();
  // A process that listens there may accept nothing, or use another type of socket.
  const bool is_used = error == 0 || error == EAGAIN || error == EPROTOTYPE;
  return absl::UnavailableError(
      Concat("listen: cannot listen on ", address, ": ",
             is_used ? "another process does" : std::generic_category().message(error)));
}

std::string WithPort(const std::string& address, int port) {
  const size_t colon = address.rfind(':');
  if (absl::StartsWith(address, "unix") || colon == std::string::npos) return address;
  return Concat(address.substr(0, colon + 1), port);
}

void EndCalls(grpc::Server& server, absl::Duration farewell) {
  server.Shutdown(DeadlineAfter(farewell));
  server.Wait();
}

int64_t MemoryLimitBytes() {
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min(machine, ControlGroupMemoryLimit().value_or(machine));
}

absl::StatusOr<ConnectionLimits> ConnectionLimitsOf(const TransportOptions& options,
                                                    int64_t open_files,
                                                    int64_t memory_limit_bytes) {
  constexpr int64_t kFilesOfDaemon = 32;
  constexpr int64_t kMaxByDefault = 32768;
  const int64_t max_connections = std::max(open_files - kFilesOfDaemon, int64_t{1});
  if (options.max_connections > max_connections) {
    return Invalid("max-connections", options.max_connections,
                   Concat("at most ", max_connections, ", the limit of open files (", open_files,
                          ") less ", kFilesOfDaemon, " for the daemon's own"));
  }
  ConnectionLimits limits = {.all = options.max_connections};
  if (limits.all == 0) {
    const int64_t of_memory =
        memory_limit_bytes / 8 / (kIdleCallBytes * std::max(options.max_concurrent_streams, 1));
    limits.all = std::clamp(std::min(open_files / 2, of_memory), int64_t{1}, kMaxByDefault);
  }
  limits.of_peer = std::max(limits.all / 2, int64_t{1});
  // gRPC holds a peer to its own limit only once that has acknowledged the settings.
  limits.calls = std::max(limits.calls, int64_t{2} * options.max_concurrent_streams);
  return limits;
}

absl::StatusOr<int64_t> OpenFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::InternalError(Concat("RLIMIT_NOFILE: ", SystemError()));
  }
  // If there is no limit, the largest number.
  return static_cast<int64_t>(
      std::min<uint64_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max()));
}

absl::StatusOr<int64_t> RaiseOpenFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::InternalError(Concat("RLIMIT_NOFILE: ", SystemError()));
  }
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::InternalError(Concat("RLIMIT_NOFILE: ", SystemError()));
  }
  return static_cast<int64_t>(limit.rlim_cur);
}

namespace {

// Log lines are cut, so that a peer cannot fill the log faster than it sends.
constexpr size_t kLongestMessage = 1000;

#ifdef GEMMD_GRPC_HAS_LOG_FUNCTION
spdlog::level::level_enum LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG: return spdlog::level::debug;
    case GPR_LOG_SEVERITY_INFO: return spdlog::level::info;
    case GPR_LOG_SEVERITY_ERROR: return spdlog::level::warn;
  }
  return spdlog::level::warn;
}

void LogOfGrpc(gpr_log_func_args* line) {
  const spdlog::level::level_enum level = LevelOf(line->severity);
  if (!spdlog::should_log(level)) return;
  std::string_view file = line->file;
  file.remove_prefix(file.rfind('/') + 1);  // Without a slash, npos + 1 is 0.
  const std::string_view message = std::string_view(line->message).substr(0, kLongestMessage);
  spdlog::log(level, "event=grpc source={}:{} message={}", LogValue(file), line->line,
              LogValue(message));
}
#else
spdlog::level::level_enum LevelOf(absl::LogSeverity severity) {
  // Peers cause some of these lines with each connection.
  return severity == absl::LogSeverity::kInfo ? spdlog::level::debug : spdlog::level::warn;
}

// Of what uses Abseil's log, which is also Protobuf.
class LogOfGrpc final : public absl::LogSink {
 public:
  void Send(const absl::LogEntry& line) override {
    const spdlog::level::level_enum level = LevelOf(line.log_severity());
    if (!spdlog::should_log(level)) return;
    const bool is_protobuf = absl::StrContains(line.source_filename(), "google/protobuf/");
    spdlog::log(level, "event={} source={}:{} message={}", is_protobuf ? "protobuf" : "grpc",
                LogValue(line.source_basename()), line.source_line(),
                LogValue(line.text_message().substr(0, kLongestMessage)));
  }
};
#endif

#ifdef GEMMD_PROTOBUF_HAS_LOG_HANDLER
void LogOfProtobuf(google::protobuf::LogLevel severity, const char* path, int line,
                   const std::string& text) {
  const spdlog::level::level_enum level =
      severity == google::protobuf::LOGLEVEL_INFO ? spdlog::level::info : spdlog::level::warn;
  if (!spdlog::should_log(level)) return;
  std::string_view file = path;
  file.remove_prefix(file.rfind('/') + 1);  // Without a slash, npos + 1 is 0.
  spdlog::log(level, "event=protobuf source={}:{} message={}", LogValue(file), line,
              LogValue(std::string_view(text).substr(0, kLongestMessage)));
}
#endif

}  // namespace

void RouteGrpcLog() {
#ifdef GEMMD_GRPC_HAS_LOG_FUNCTION
  gpr_set_log_function(LogOfGrpc);
#else
  static absl::NoDestructor<LogOfGrpc> log;
  absl::AddLogSink(log.get());
  absl::SetStderrThreshold(absl::LogSeverityAtLeast::kFatal);
  absl::InitializeLog();
#endif
}

void RouteProtobufLog() {
#ifdef GEMMD_PROTOBUF_HAS_LOG_HANDLER
  google::protobuf::SetLogHandler(LogOfProtobuf);
#endif
}

}  // namespace gemmd
