// SPDX-License-Identifier: Apache-2.0
//
// The daemon without its main: devices, scheduler and services behind one gRPC server.
//
// A server lives in this order: Start (canaries, then metrics, then listening, then health as the
// devices are), EnterLameDuck (health is NOT_SERVING, everything still works), Drain (refuses,
// finishes what was accepted, stops listening, and last of all stops serving metrics).
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/device/device.h"
#include "server/metrics/exposition.h"
#include "server/metrics/gpu_sampler.h"
#include "server/metrics/handler_times.h"
#include "server/metrics/observer.h"
#include "server/product/admission.h"
#include "server/product/counts.h"
#include "server/product/product_runner.h"
#include "server/product/scheduler.h"
#include "server/store/tensor_store.h"
#include "server/system/clock.h"
#include "server/system/log.h"
#include "server/system/mutex.h"
#include "server/system/threads.h"
#include "server/trust/trust.h"
#include "server/wire/calls.h"
#include "server/wire/certificates.h"
#include "server/wire/connection_acceptor.h"
#include "server/wire/gate.h"
#include "server/wire/health_service.h"
#include "server/wire/transport.h"

namespace gemmd {

struct ServerOptions {
  TransportOptions transport;
  TrustOptions trust;
  Admission::Limits admission = {.max_requests = 4096, .max_bytes = 0};
  JoinRules joins;
  // Threads that answer products which ran together (Scheduler). Default: one for four processors,
  // at most four.
  std::optional<int> answering_threads;
  absl::Duration canary_timeout = absl::Seconds(30);
  SendWatch::Limits sending;
  StoreOptions tensors = {.max_bytes = 0, .max_session_bytes = 0};
  // 0 takes that of the control group or of the machine. Where another limit of bytes is 0, it
  // takes a share of this one (WithMemoryShares).
  int64_t memory_limit_bytes = 0;
  // [tls:|mtls:]host:port; metrics are not served where it is empty.
  std::string metrics_listen;
  std::function<LogCounts()> log_counts = [] { return LogCounts(); };  // For metrics.
  LifeCheck::Options life_check;
  VerifyOptions verify;
  SpanOptions spans;
  bool speaks_kserve = true;   // Whether KServe's protocol is served too.
  bool has_reflection = true;  // Whether gRPC tells of the services.
};

class Server {
 public:
  // The first device is the default one.
  // Errors: InvalidArgument for options that make no sense; Unavailable where no device is ready or
  // an address cannot be listened on; the message names it.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options, std::vector<std::unique_ptr<Device>> devices);

  // Whether all addresses can be listened on, before devices are made, which takes seconds: opens
  // and closes them. Errors: as Start.
  static absl::Status CheckAddresses(const ServerOptions& options);

  // Where Drain was not called, stops at once, as Drain without grace does.
  ~Server();

  // The addresses that the server listens on, with the ports that were chosen for port 0.
  const std::vector<std::string>& addresses() const { return addresses_; }

  // Where metrics are served, with the port that was chosen; empty where they are not served.
  std::string metrics_address() const { return metrics_ ? metrics_->address() : ""; }

  // Health says NOT_SERVING; everything else goes on.
  void EnterLameDuck();

  // Refuses new products, waits for the accepted ones and stops. A product that is left after
  // `grace` is dropped or aborted, and answered Unavailable; a device that does not let go of it is
  // waited for. If there are connections, products are refused for kRefusing at least, and for up
  // to three times as long while a message of some size arrives over TCP, within the grace: gRPC
  // cancels what it has received in part when it stops, and its caller cannot tell whether it was
  // computed.
  // Errors: DeadlineExceeded where the grace did not suffice.
  absl::Status Drain(absl::Duration grace);
  static constexpr absl::Duration kRefusing = absl::Milliseconds(200);

  // Has rules, tokens and keys read again; where they are bad, everything stays as it was. Both are
  // logged. Does not wait: a file may be on a disk that does not answer. Threads: any.
  void ReloadRules();

  // Ends the grace of a Drain, whether it waits now or is called later. Threads: any.
  void EndGrace() { admission_.StopWaiting(); }

 private:
  class Services;

  Server(const ServerOptions& options, std::unique_ptr<Trust> trust,
         std::unique_ptr<SpanExport> spans, std::vector<std::unique_ptr<Device>> devices);
  absl::Status CheckDevices(absl::Duration timeout);
  void ReadGpus();
  absl::Status Listen(const ServerOptions& options);
  void Take(ConnectionKind kind, int descriptor);
  void ReadRulesAgain();
  void AddAcceptors(grpc::ServerBuilder& builder);
  absl::Status CheckLife(absl::Duration longest_turn);
  absl::Status life() ABSL_LOCKS_EXCLUDED(acceptor_mutex_);
  absl::Status serving() const;
  void StopAccepting() ABSL_LOCKS_EXCLUDED(acceptor_mutex_);
  void RefuseArrivals(absl::Duration longest) ABSL_LOCKS_EXCLUDED(acceptor_mutex_);
  ConnectionCounts connection_counts() ABSL_LOCKS_EXCLUDED(acceptor_mutex_);
  std::optional<int64_t> AcknowledgedBytes(const std::string& peer)
      ABSL_LOCKS_EXCLUDED(acceptor_mutex_);
  std::map<int, int64_t> ReceivedBytes() ABSL_LOCKS_EXCLUDED(acceptor_mutex_);
  CertificateCounts certificate_counts() const;
  void WatchDevices();
  void WatchMemory();
  std::optional<int64_t> UsedMemory(int64_t limit_bytes) const;
  void WatchPeers();
  void WatchTrust();
  std::string ChipStateOf(size_t device) const;

  const SteadyClock clock_;
  const std::function<LogCounts()> log_counts_;
  // Threads of devices, of checks and of the store may hold the last reference to a call that has
  // ended, and with it what is borrowed from these: they are destroyed after all threads.
  SendWatch sends_;
  Admission admission_;
  ReceiveQuota receiving_;
  TensorStore tensors_;
  // Destroyed after the devices, whose threads call into it.
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<bool> is_out_;  // Whether it was logged that the device serves no longer.
  std::vector<ServedDevice> served_;
  Health health_;
  IncidentLog incidents_;
  Stats stats_;
  HandlerTimes handler_times_;
  std::unique_ptr<GpuSampler> gpus_;
  std::unique_ptr<Observer> observer_;
  const std::unique_ptr<SpanExport> spans_;  // Null where no spans are written.
  std::unique_ptr<ProductRunner> runner_;
  std::unique_ptr<ExpiryTimer> expiry_timer_;
  MemoryPressure memory_;
  std::unique_ptr<Services> services_;
  std::vector<std::string> addresses_;
  std::unique_ptr<ServedCertificates> certificates_;  // Null without TLS.
  GrpcAcceptors connections_;
  const std::unique_ptr<Trust> callers_;  // Null where there are no rules.
  const Gate gate_;
  UserAcceptors users_;
  std::unique_ptr<grpc::Server> grpc_server_;
  // Accepts for the server, and ends before it.
  Mutex acceptor_mutex_;  // Metrics are read while these come and go.
  std::unique_ptr<ConnectionAcceptor> acceptor_ ABSL_GUARDED_BY(acceptor_mutex_);
  std::unique_ptr<LifeCheck> life_ ABSL_GUARDED_BY(acceptor_mutex_);
  std::atomic<bool> is_listening_ = false;
  // Ends first, since it looks at everything above.
  std::unique_ptr<HttpListener> metrics_;
  std::unique_ptr<ThreadPool> watch_;  // Looks at peers and memory while there are calls.
  std::unique_ptr<ThreadPool> certificate_watch_;
  std::unique_ptr<OnRequest> reload_;  // Null where there are no rules.
  bool drained_ = false;
};

// The options with each limit of memory that was left to the server (0) as a share of what the
// process may have: three eighths, but at most 4 GiB, are admitted, a quarter is for the buffers of
// gRPC and an eighth for tensors. The last quarter is for the daemon itself and its threads.
ServerOptions WithMemoryShares(ServerOptions options);

}  // namespace gemmd
