// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/kernel.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "kernels/select.h"
#include "server/crossing/shared_memory.h"
#include "server/device/device.h"
#include "server/kserve/kserve_service.h"
#include "server/store/product_tensors.h"
#include "server/system/log.h"
#include "server/system/resources.h"
#include "server/wire/admin_service.h"
#include "server/wire/gate.h"
#include "server/wire/gemm_service.h"
#include "server/wire/health_service.h"
#include "server/wire/product_exchange.h"
#include "server/wire/reflection_service.h"
#include "server/wire/registry_service.h"
#include "server/wire/socket_watch.h"
#include "server/wire/tensor_service.h"
#include "server/wire/transport.h"

namespace gemmd {

namespace {

// Time for the last answers to reach their clients before connections are cut.
constexpr absl::Duration kFarewell = absl::Milliseconds(100);

constexpr absl::Duration kMinSendTimeout = absl::Milliseconds(100);

// The longest pause between two checks of the peers and of the memory.
constexpr absl::Duration kMaxPause = absl::Milliseconds(250);

// Four threads can answer as many small products as the rest of a large machine can parse.
int DefaultAnsweringThreads() { return std::clamp(UsableProcessors() / 4, 0, 4); }

// The pause between two checks of the certificate files.
constexpr absl::Duration kCertificatePause = absl::Seconds(1);

absl::StatusOr<std::vector<ListeningSocket>> OpenAll(const TransportOptions& options) {
  const auto reach = options.insecure_allow_remote ? ListeningSocket::PlainReach::kAnywhere
                                                   : ListeningSocket::PlainReach::kLoopback;
  std::vector<ListeningSocket> sockets;
  for (const std::string& address : options.listen) {
    ASSIGN_OR_RETURN(ListeningSocket socket,
                     ListeningSocket::Open(address, reach, options.unix_sockets));
    sockets.push_back(std::move(socket));
  }
  return sockets;
}

// Not open if no metrics are requested.
absl::StatusOr<HttpSocket> OpenMetrics(const ServerOptions& options) {
  if (options.metrics_listen.empty()) return HttpSocket();
  return ListenForHttp(options.metrics_listen, options.transport.insecure_allow_remote
                                                   ? PlainHttpReach::kAnywhere
                                                   : PlainHttpReach::kLoopback);
}

std::vector<std::unique_ptr<Device>> WithTensors(std::vector<std::unique_ptr<Device>> devices,
                                                 TensorStore& store) {
  for (std::unique_ptr<Device>& device : devices) {
    device = gemmd::WithTensors(std::move(device), store);
  }
  return devices;
}

void WarnOfKeys(const Trust& trust) {
  for (const std::string& reason : trust.left_out_keys()) {
    spdlog::warn("event=jwt_key_left_out reason={}", LogValue(reason));
  }
}

// Null if there are no rules.
absl::StatusOr<std::unique_ptr<Trust>> LoadTrust(const TrustOptions& options) {
  if (!options.rules_file.empty()) {
    ASSIGN_OR_RETURN(std::unique_ptr<Trust> trust, Trust::Load(options));
    WarnOfKeys(*trust);
    return trust;
  }
  if (!options.tokens_file.empty() || !options.jwt_keys_file.empty()) {
    return Invalid("rules", "nothing",
                   "a file beside --tokens and --jwt-keys: without rules a token grants nothing");
  }
  return nullptr;
}

}  // namespace

// The services, which live as long as the gRPC server.
class Server::Services {
 public:
  Services(Server& server, const ServerOptions& options)
      : parts{*server.runner_, server.gate_,          server.receiving_,
              server.sends_,   server.handler_times_, server.clock_} {
    all.push_back(MakeGemmService(parts));
    all.push_back(MakeRegistryService(server.served_, parts, *server.observer_, LimitsOf(options)));
    all.push_back(MakeTensorService(parts));
    all.push_back(MakeAdminService(server.served_, parts, server.incidents_,
                                   options.transport.max_message_bytes));
    all.push_back(MakeHealthService(server.health_, parts));
    if (!options.speaks_kserve) return;
    all.push_back(MakeKserveService(parts, [&server] { return server.serving().ok(); }));
  }

  const ServiceParts parts;
  std::vector<std::unique_ptr<grpc::Service>> all;

 private:
  static v1::Limits LimitsOf(const ServerOptions& options) {
    v1::Limits limits;
    limits.set_max_message_bytes(options.transport.max_message_bytes);
    limits.set_max_queued_requests(options.admission.max_requests);
    limits.set_max_queued_bytes(options.admission.max_bytes);
    limits.set_max_concurrent_streams(options.transport.max_concurrent_streams);
    limits.set_max_stream_requests(kMaxStreamRequests);
    return limits;
  }
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& asked, std::vector<std::unique_ptr<Device>> devices) {
  const ServerOptions options = WithMemoryShares(asked);
  if (devices.empty()) return Invalid("devices", "none", "at least one");
  if (options.transport.listen.empty()) return Invalid("listen", "no address", "at least one");
  if (!(options.sending.timeout >= kMinSendTimeout)) {
    return Invalid("send-timeout", absl::FormatDuration(options.sending.timeout),
                   Concat("at least ", absl::FormatDuration(kMinSendTimeout)));
  }
  if (options.sending.min_bytes_per_second < 1) {
    return Invalid("send-timeout", options.sending.min_bytes_per_second,
                   "at least 1 byte a second");
  }
  RETURN_IF_ERROR(CheckTls(options.transport, options.metrics_listen));
  std::unique_ptr<ServedCertificates> certificates;
  if (!options.transport.certificates.certificate.empty()) {
    ASSIGN_OR_RETURN(certificates, ServedCertificates::Load(options.transport.certificates));
  }
  // Before the check of the devices, which takes longer, so that an unavailable address is reported
  // at once.
  ASSIGN_OR_RETURN(HttpSocket metrics_socket, OpenMetrics(options));
  ASSIGN_OR_RETURN(std::unique_ptr<Trust> trust, LoadTrust(options.trust));
  ASSIGN_OR_RETURN(std::unique_ptr<SpanExport> spans, SpanExport::Open(options.spans));
  std::unique_ptr<Server> server(
      new Server(options, std::move(trust), std::move(spans), std::move(devices)));
  server->certificates_ = std::move(certificates);
  RETURN_IF_ERROR(server->CheckDevices(options.canary_timeout));
  server->ReadGpus();
  if (metrics_socket.socket.is_open()) {
    ASSIGN_OR_RETURN(server->metrics_,
                     ServeMetrics(std::move(metrics_socket), *server->observer_, server->clock_,
                                  {.health = [s = server.get()] { return s->life(); },
                                   .readiness = [s = server.get()] { return s->serving(); }},
                                  StreamsFor(HttpSecurityOf(options.metrics_listen),
                                             server->certificates_.get())));
    spdlog::info("event=metrics_listening address={}", LogValue(server->metrics_->address()));
  }
  RETURN_IF_ERROR(server->Listen(options));
  return server;
}

absl::Status Server::CheckAddresses(const ServerOptions& options) {
  RETURN_IF_ERROR(OpenAll(options.transport).status());
  return OpenMetrics(options).status();
}

Server::Server(const ServerOptions& options, std::unique_ptr<Trust> trust,
               std::unique_ptr<SpanExport> spans, std::vector<std::unique_ptr<Device>> devices)
    : log_counts_(options.log_counts),
      sends_(options.sending, clock_,
             [](const std::string& peer) { return SocketWatch::Get().TakenBytes(peer); }),
      admission_(options.admission),
      receiving_(options.transport.memory_quota_bytes),
      tensors_(options.tensors, clock_),
      devices_(WithTensors(std::move(devices), tensors_)),
      is_out_(devices_.size()),
      health_(v1::Gemm::service_full_name(), devices_.front()->info().name),
      incidents_(IncidentLog::Options()),
      stats_(devices_.size()),
      spans_(std::move(spans)),
      memory_(
          options.memory_limit_bytes,
          [this, limit = options.memory_limit_bytes] { return UsedMemory(limit); },
          GiveBackFreeMemory),
      callers_(std::move(trust)),
      gate_(callers_.get()),
      users_(gate_, options.transport.unix_sockets.group) {
  std::vector<Device*> borrowed;
  for (const auto& device : devices_) {
    borrowed.push_back(device.get());
    served_.push_back({.device = device.get(), .canary = absl::UnavailableError("not checked")});
  }
  if (callers_ != nullptr) reload_ = std::make_unique<OnRequest>([this] { ReadRulesAgain(); });
  scheduler_ =
      std::make_unique<Scheduler>(borrowed, clock_, options.joins,
                                  options.answering_threads.value_or(DefaultAnsweringThreads()));
  expiry_timer_ = std::make_unique<ExpiryTimer>(*scheduler_, clock_);
  runner_ = std::make_unique<ProductRunner>(
      served_, *scheduler_, admission_, stats_, clock_, options.transport.max_message_bytes,
      &tensors_,
      VerifySetup{options.verify, &incidents_,
                  [this](size_t device) { return ChipStateOf(device); }},
      spans_.get());
}

void Server::ReadGpus() {
  std::vector<std::string> pci_bus_ids;
  for (const auto& device : devices_) pci_bus_ids.push_back(device->info().pci_bus_id);
  gpus_ = std::make_unique<GpuSampler>(pci_bus_ids);
  if (const std::string absence = gpus_->absence(); !absence.empty()) {
    spdlog::warn("event=gpu_readings_absent reason={}", LogValue(absence));
  }
  observer_ = std::make_unique<Observer>(served_, *scheduler_, admission_, stats_, handler_times_,
                                         *gpus_, [this](Snapshot& snapshot) {
                                           snapshot.connections = connection_counts();
                                           snapshot.certificate = certificate_counts();
                                           snapshot.log = log_counts_();
                                           if (spans_ != nullptr) snapshot.spans = spans_->counts();
                                           snapshot.tensors = tensors_.load();
                                           if (callers_ != nullptr) {
                                             snapshot.callers = callers_->uses();
                                             snapshot.signed_tokens = callers_->signed_tokens();
                                           }
                                         });
}

absl::Status Server::Listen(const ServerOptions& options) {
  services_ = std::make_unique<Services>(*this, options);
  grpc::ServerBuilder builder;
  RETURN_IF_ERROR(ConfigureTransport(options.transport, receiving_, builder));
  for (const auto& service : services_->all) builder.RegisterService(service.get());
  if (options.has_reflection) builder.SetOption(Reflection(services_->parts));

  ASSIGN_OR_RETURN(std::vector<ListeningSocket> sockets, OpenAll(options.transport));
  ASSIGN_OR_RETURN(const int64_t open_files, OpenFileLimit());
  ASSIGN_OR_RETURN(const ConnectionLimits limits,
                   ConnectionLimitsOf(options.transport, open_files, options.memory_limit_bytes));
  AddAcceptors(builder);
  AuditCalls(gate_, builder);
  grpc_server_ = builder.BuildAndStart();
  if (grpc_server_ == nullptr) return absl::InternalError("listen: gRPC did not start");
  WatchDevices();
  // Memory that is resident before the first call will stay resident.
  WatchMemory();
  for (const ListeningSocket& socket : sockets) {
    addresses_.push_back(socket.address());
    spdlog::info("event=listening address={}", LogValue(socket.address()));
  }
  const auto take = [this](ConnectionKind kind, int descriptor) { Take(kind, descriptor); };
  ASSIGN_OR_RETURN(auto acceptor,
                   ConnectionAcceptor::Start(std::move(sockets), limits,
                                             options.transport.keepalive_timeout, take, clock_));
  is_listening_ = true;
  SocketWatch::CheckEffective();
  MutexLock lock(&acceptor_mutex_);
  acceptor_ = std::move(acceptor);
  life_ = std::make_unique<LifeCheck>(
      options.life_check,
      [this, longest_turn = options.life_check.longest_turn] { return CheckLife(longest_turn); },
      clock_);
  watch_ = std::make_unique<ThreadPool>("gemmd-watch",
                                        std::min(kMaxPause, sends_.limits().timeout / 4), [this] {
                                          WatchMemory();
                                          WatchPeers();
                                          WatchTrust();
                                        });
  if (certificates_ != nullptr) {
    certificate_watch_ = std::make_unique<ThreadPool>("gemmd-certs", kCertificatePause,
                                                      [this] { certificates_->Refresh(); });
  }
  return absl::OkStatus();
}

void Server::AddAcceptors(grpc::ServerBuilder& builder) {
  connections_.Add(ConnectionKind::kSelf, grpc::InsecureServerCredentials(), builder);
  connections_.Add(ConnectionKind::kPlain, GuardedPlainCredentials(gate_, nullptr), builder);
  users_.AddTo(builder);
  if (certificates_ == nullptr) return;
  using Peer = ServedCertificates::Peer;
  connections_.Add(ConnectionKind::kTls,
                   Guarded(certificates_->CredentialsFor(Peer::kAnybody), gate_), builder);
  if (!certificates_->asks_clients()) return;
  connections_.Add(ConnectionKind::kMtls,
                   Guarded(certificates_->CredentialsFor(Peer::kCertified), gate_), builder);
}

void Server::Take(ConnectionKind kind, int descriptor) {
  if (kind == ConnectionKind::kUnix) {
    users_.Give(descriptor);
  } else {
    connections_.Give(kind, descriptor);
  }
}

void Server::Reload() {
  if (reload_ != nullptr) reload_->Ask();
  if (spans_ != nullptr) spans_->Reopen();
}

void Server::ReadRulesAgain() {
  if (const absl::Status status = callers_->Reload(); status.ok()) {
    spdlog::info("event=rules_read identities={}", callers_->size());
    WarnOfKeys(*callers_);
  } else {
    spdlog::error("event=rules_kept reason={}", LogValue(std::string(status.message())));
  }
}

ConnectionCounts Server::connection_counts() {
  MutexLock lock(&acceptor_mutex_);
  return acceptor_ == nullptr ? ConnectionCounts() : acceptor_->counts();
}

CertificateCounts Server::certificate_counts() const {
  if (certificates_ == nullptr) return {};
  const ServedCertificates::State state = certificates_->state();
  return {.not_after_s = absl::ToUnixSeconds(state.not_after),
          .loads = state.loads,
          .refusals = state.refusals};
}

void Server::StopAccepting() {
  std::unique_ptr<LifeCheck> life;
  std::unique_ptr<ConnectionAcceptor> acceptor;
  MutexLock lock(&acceptor_mutex_);
  life = std::move(life_);
  acceptor = std::move(acceptor_);
}

void Server::RefuseArrivals(absl::Duration longest) {
  // Anything smaller is a ping or a small call, which is refused as soon as it arrives.
  constexpr int64_t kMinBytes = int64_t{64} << 10;
  // Short enough that clients have retries left, and that clients which come later are not delayed.
  const absl::Duration max_refusing = 3 * kRefusing;
  if (connection_counts().open == 0) return;
  const int64_t start_ns = clock_.NowNs();
  const absl::Duration left = std::min(longest, max_refusing);
  std::map<uint64_t, int64_t> before = SocketWatch::Get().ReceivedBytes();
  while (true) {
    const absl::Duration rest = left - absl::Nanoseconds(clock_.NowNs() - start_ns);
    if (rest <= absl::ZeroDuration() || !admission_.Pause(std::min(kRefusing, rest))) return;
    std::map<uint64_t, int64_t> now = SocketWatch::Get().ReceivedBytes();
    const bool is_receiving = std::any_of(now.begin(), now.end(), [&](const auto& connection) {
      return connection.second - before[connection.first] >= kMinBytes;
    });
    if (!is_receiving) return;
    before = std::move(now);
  }
}

void Server::EnterLameDuck() { health_.EnterLameDuck(); }

absl::Status Server::Drain(absl::Duration grace) {
  drained_ = true;
  if (grpc_server_ == nullptr) return absl::OkStatus();
  EnterLameDuck();
  admission_.Close();
  tensors_.Close();
  // Whoever calls after this line is in the log is refused.
  spdlog::info("event=drain grace={}", absl::FormatDuration(grace));
  const int64_t start_ns = clock_.NowNs();
  const bool finished = admission_.WaitUntilIdle(grace);
  const absl::Duration waited = absl::Nanoseconds(clock_.NowNs() - start_ns);
  if (!finished) {
    scheduler_->Stop(absl::UnavailableError("the server stopped"));
    runner_->StopChecks();
  }
  RefuseArrivals(grace - waited);
  // The calls that are left have no product: open streams, and watchers of health. gRPC also waits
  // for a product that its device has not released. Shutting down before the wait would send
  // clients elsewhere sooner (GOAWAY). But gRPC 1.51 then closes a connection as soon as its last
  // answer is written, and a client that still reads that answer may lose it (as happened in one of
  // 100 drains under load).
  StopAccepting();
  EndCalls(*grpc_server_, kFarewell);
  watch_.reset();
  certificate_watch_.reset();
  // Until here, a scrape shows how far the drain has come.
  metrics_.reset();
  if (finished) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("drain: products were left after ",
                   absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1)))));
}

Server::~Server() {
  if (!drained_) (void)Drain(absl::ZeroDuration());
  StopAccepting();
  metrics_.reset();
  for (const auto& device : devices_) device->WatchReadiness(nullptr);
  grpc_server_.reset();
}

// What the server makes sure of before it serves: that its devices compute correctly, and how fast
// they are.

namespace {

// Kernels without a measured rate are chosen by an estimate, which the operator should know.
void LogUnmeasured(const std::string& device, const DeviceProfile& profile) {
  size_t available = 0;
  size_t unmeasured = 0;
  for (const Kernel& kernel : Catalog(profile.target.kind)) {
    if (!kernel.available(profile.target).ok()) continue;
    ++available;
    if (!HasRate(kernel, profile)) ++unmeasured;
  }
  if (unmeasured == 0) return;
  spdlog::warn("event=rates_missing device={} kernels={} of={}", LogValue(device), unmeasured,
               available);
}

void LogConfinement(const DeviceInfo& info) {
  if (!info.is_confined) return;
  spdlog::info("event=worker_confined device={} by={}", LogValue(info.name),
               LogValue(info.confinement));
  if (info.unconfined.empty()) return;
  spdlog::warn("event=confinement_missing device={} reason={}", LogValue(info.name),
               LogValue(info.unconfined));
}

}  // namespace

absl::Status Server::CheckDevices(absl::Duration timeout) {
  for (ServedDevice& served : served_) {
    const DeviceInfo& info = served.device->info();
    served.canary = RunCanary(*served.device, timeout);
    if (served.canary.ok()) {
      spdlog::info("event=device_ready device={} description={} threads={}", LogValue(info.name),
                   LogValue(info.description), info.threads);
      LogUnmeasured(info.name, served.device->profile());
      LogConfinement(info);
    } else {
      spdlog::error("event=device_not_ready device={} reason={}", LogValue(info.name),
                    LogValue(served.canary.ToString()));
    }
  }
  if (std::none_of(served_.begin(), served_.end(),
                   [](const auto& served) { return served.canary.ok(); })) {
    return absl::UnavailableError("devices: none is ready, see the log for each one's reason");
  }
  return absl::OkStatus();
}

// What the server watches while it serves: memory, peers, devices and its own liveness.

namespace {

// Replaces --send-timeout when memory is nearly used up.
constexpr absl::Duration kSendTimeoutUnderPressure = absl::Seconds(1);

// An upload may pause for so many send timeouts, unless memory is nearly used up: a client may be
// stopped or change its network, and a proxy's connection carries the calls of others.
constexpr int kTimeoutsOfUpload = 3;

// The same limit as admission's for products.
int64_t LargestTensor(Pressure pressure) {
  if (pressure == Pressure::kNone) return std::numeric_limits<int64_t>::max();
  return pressure == Pressure::kHigh ? Admission::kLargeBytes : -1;
}

}  // namespace

// Includes the memory of the workers, which share the limit. Memory that workers share with the
// daemon counts once, whichever process wrote it.
std::optional<int64_t> Server::UsedMemory(int64_t limit_bytes) const {
  std::optional<int64_t> used = UsedBytes(limit_bytes, Staging::ResidentBytesOfAll());
  if (!used) return used;
  for (const auto& device : devices_) *used += device->worker_memory_bytes();
  return used;
}

void Server::WatchMemory() {
  const Pressure pressure = memory_.Measure(admission_.load().bytes + tensors_.used_bytes());
  tensors_.SetMaxNewBytes(LargestTensor(pressure));
  if (!admission_.SetPressure(pressure)) return;
  const auto level = pressure == Pressure::kNone ? spdlog::level::info : spdlog::level::warn;
  spdlog::log(level, "event=memory_pressure pressure={} used_bytes={}", NameOf(pressure),
              memory_.used_bytes());
}

void Server::WatchPeers() {
  const bool is_critical = admission_.load().pressure == Pressure::kCritical;
  const SendWatch::Limits& limits = sends_.limits();
  const absl::Duration patience =
      is_critical ? std::min(kSendTimeoutUnderPressure, limits.timeout) : limits.timeout;
  SocketWatch::Get().CloseSlow({.stall = limits.timeout * (is_critical ? 1 : kTimeoutsOfUpload),
                                .patience = patience,
                                .timeout = limits.timeout,
                                .min_bytes_per_second = limits.min_bytes_per_second},
                               clock_.NowNs());
  const int ended = sends_.EndSilent(patience);
  if (ended == 0) return;
  stats_.AddSilentCalls(ended);
  spdlog::info("event=silent_calls_ended calls={}", ended);
}

// A device that gave wrong answers is taken out of service, and health reports it like any other
// device that is not ready.
void Server::WatchTrust() {
  for (size_t i = 0; i < served_.size(); ++i) {
    const absl::Status status = served_[i].device->trust().status();
    if (status.ok() || is_out_[i]) continue;
    is_out_[i] = true;
    const std::string& name = served_[i].device->info().name;
    health_.SetReady(name, false);
    spdlog::error("event=device_not_ready device={} reason={}", LogValue(name),
                  LogValue(std::string(status.message())));
  }
}

// What NVML last reported of the chip, for the record of an incident.
std::string Server::ChipStateOf(size_t device) const {
  const std::optional<GpuSample> sample = gpus_ == nullptr ? std::nullopt : gpus_->sample(device);
  if (!sample) return "";
  const GpuReading& reading = sample->reading;
  std::string text = absl::StrCat("uuid=", sample->uuid);
  const auto add = [&text](const char* name, const auto& value) {
    if (value) absl::StrAppend(&text, " ", name, "=", *value);
  };
  add("sm_clock_hertz", reading.sm_clock_hertz);
  add("memory_clock_hertz", reading.memory_clock_hertz);
  add("temperature_celsius", reading.temperature_celsius);
  add("power_watts", reading.power_watts);
  add("ecc_corrected", reading.ecc_corrected);
  add("ecc_uncorrected", reading.ecc_uncorrected);
  return text;
}

absl::Status Server::CheckLife(absl::Duration longest_turn) {
  // On an overloaded machine an answer may take seconds without anything being wrong.
  constexpr absl::Duration kPatience = absl::Seconds(10);
  const auto is_too_long = [&](int64_t since_ns) {
    return absl::Nanoseconds(clock_.NowNs() - since_ns) > longest_turn;
  };
  const std::optional<int64_t> hold_ns = handler_times_.oldest_hold_ns();
  if (hold_ns && is_too_long(*hold_ns)) {
    return absl::InternalError("a thread of gRPC is stuck in a handler");
  }
  for (const auto& device : devices_) {
    const int64_t turn_ns = device->condition().thread_turn_ns;
    if (turn_ns != 0 && is_too_long(turn_ns)) {
      return absl::InternalError(
          absl::StrCat("the thread of device ", device->info().name, " is stuck"));
    }
  }
  const auto take = [this](int descriptor) {
    connections_.Give(ConnectionKind::kSelf, descriptor);
  };
  const absl::Status answer = CallSelf(take, kPatience);
  // A lack of room is no reason for a restart.
  return absl::IsResourceExhausted(answer) ? absl::OkStatus() : answer;
}

absl::Status Server::life() {
  MutexLock lock(&acceptor_mutex_);
  return life_ == nullptr ? absl::OkStatus() : life_->status();
}

absl::Status Server::serving() const {
  return is_listening_ ? health_.serving() : absl::UnavailableError("not listening yet");
}

// From now on the log and health report when a device becomes ready or stops being ready.
void Server::WatchDevices() {
  health_.SetReady(v1::Registry::service_full_name(), true);
  for (const ServedDevice& served : served_) {
    const std::string name = served.device->info().name;
    if (!served.canary.ok()) {
      health_.SetReady(name, false);
      continue;
    }
    const DeviceTrust& trust = served.device->trust();
    served.device->WatchReadiness(
        [this, name, &trust, was_ready = true](const absl::Status& now) mutable {
          health_.SetReady(name, now.ok() && trust.status().ok());
          if (!now.ok()) {
            spdlog::error("event=device_not_ready device={} reason={}", LogValue(name),
                          LogValue(std::string(now.message())));
          } else if (!was_ready) {
            spdlog::info("event=device_ready device={}", LogValue(name));
          }
          was_ready = now.ok();
        });
  }
}

namespace {

constexpr int64_t kMaxAdmittedBytes = int64_t{4} << 30;

void SetUnasked(int64_t& bytes, int64_t share_bytes) {
  if (bytes == 0) bytes = share_bytes;
}

}  // namespace

ServerOptions WithMemoryShares(ServerOptions options) {
  int64_t& limit = options.memory_limit_bytes;
  SetUnasked(limit, MemoryLimitBytes());
  // Whatever the limit, no more than this can be mapped.
  const std::optional<int64_t> left_bytes = AddressSpaceLeft();
  if (left_bytes) limit = std::min(limit, ResidentBytes().value_or(0) + *left_bytes);
  SetUnasked(options.admission.max_bytes, std::min(kMaxAdmittedBytes, limit / 8 * 3));
  SetUnasked(options.transport.memory_quota_bytes, limit / 4);
  StoreOptions& tensors = options.tensors;
  SetUnasked(tensors.max_bytes, limit / 8);
  if (tensors.max_session_bytes > 0) {
    tensors.session_device_share =
        static_cast<double>(tensors.max_session_bytes) / static_cast<double>(tensors.max_bytes);
  }
  SetUnasked(tensors.max_session_bytes, tensors.max_bytes / 2);
  return options;
}

}  // namespace gemmd
