// SPDX-License-Identifier: Apache-2.0
//
// The daemon without its main function: devices, scheduler and services behind one gRPC server.
//
// The order of a server's life: Start (canaries, then metrics, then listening, then health
// according to the devices), EnterLameDuck (health is NOT_SERVING, everything still works), Drain
// (refuses new products, finishes accepted ones, stops listening, and last stops serving metrics).
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
  // Threads that answer the jobs of large launches (Scheduler). Default: one per four processors,
  // at most four.
  std::optional<int> answering_threads;
  absl::Duration canary_timeout = absl::Seconds(30);
  SendWatch::Limits sending;
  StoreOptions tensors = {.max_bytes = 0, .max_session_bytes = 0};
  // 0: the limit of the control group or the memory of the machine. Other byte limits that are 0
  // become shares of this one (WithMemoryShares).
  int64_t memory_limit_bytes = 0;
  // [tls:|mtls:]host:port; if empty, metrics are not served.
  std::string metrics_listen;
  std::function<LogCounts()> log_counts = [] { return LogCounts(); };  // For metrics.
  LifeCheck::Options life_check;
  VerifyOptions verify;
  SpanOptions spans;
  bool speaks_kserve = true;   // Whether to serve KServe's protocol too.
  bool has_reflection = true;  // Whether to serve gRPC reflection.
};

class Server {
 public:
  // The first device is the default one. Errors: InvalidArgument for invalid options; Unavailable
  // if no device is ready or listening on an address fails. The message names the option, device or
  // address.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options, std::vector<std::unique_ptr<Device>> devices);

  // Checks that all addresses can be listened on, by opening and closing them. For use before
  // devices are made, which takes seconds. Errors: as Start.
  static absl::Status CheckAddresses(const ServerOptions& options);

  // If Drain was not called, stops at once, like Drain with a grace of 0.
  ~Server();

  // The addresses that the server listens on, with the ports chosen in place of 0.
  const std::vector<std::string>& addresses() const { return addresses_; }

  // The address at which metrics are served, with the chosen port; empty if they are not served.
  std::string metrics_address() const { return metrics_ ? metrics_->address() : ""; }

  // Makes health NOT_SERVING; everything else continues.
  void EnterLameDuck();

  // Refuses new products, waits for the accepted ones and stops. A product that is not done after
  // `grace` is dropped or aborted and answered with Unavailable; if a device does not release it,
  // Drain waits for the device. If there are connections, products are refused for at least
  // kRefusing, and for up to three times as long while a message of some size arrives, within the
  // grace: when gRPC stops, it cancels calls whose messages it has received in part, and the caller
  // cannot tell whether the product was computed. Errors: DeadlineExceeded if the grace did not
  // suffice.
  absl::Status Drain(absl::Duration grace);
  static constexpr absl::Duration kRefusing = absl::Milliseconds(200);

  // Starts reading rules, tokens and keys again, and opening the file of --traces again, if there
  // are any. If the rules are invalid, nothing changes. All results are logged. Does not wait,
  // because a file may be on a disk that does not respond. Threads: any.
  void Reload();

  // Ends the grace of a Drain, in progress or later. Threads: any.
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
  // ended, and so to these members, which the call borrows. They are destroyed after all threads.
  SendWatch sends_;
  Admission admission_;
  ReceiveQuota receiving_;
  TensorStore tensors_;
  // Destroyed after the devices, whose threads call into it.
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<bool> is_out_;  // Whether the log already says that the device has been taken out.
  std::vector<ServedDevice> served_;
  Health health_;
  IncidentLog incidents_;
  Stats stats_;
  HandlerTimes handler_times_;
  std::unique_ptr<GpuSampler> gpus_;
  std::unique_ptr<Observer> observer_;
  const std::unique_ptr<SpanExport> spans_;  // Null if no spans are written.
  std::unique_ptr<ProductRunner> runner_;
  std::unique_ptr<ExpiryTimer> expiry_timer_;
  MemoryPressure memory_;
  std::unique_ptr<Services> services_;
  std::vector<std::string> addresses_;
  std::unique_ptr<ServedCertificates> certificates_;  // Null without TLS.
  GrpcAcceptors connections_;
  const std::unique_ptr<Trust> callers_;  // Null if there are no rules.
  const Gate gate_;
  UserAcceptors users_;
  std::unique_ptr<grpc::Server> grpc_server_;
  // Accepts connections for the gRPC server, and ends before it.
  Mutex acceptor_mutex_;  // Needed since metrics are read while these members are set and reset.
  std::unique_ptr<ConnectionAcceptor> acceptor_ ABSL_GUARDED_BY(acceptor_mutex_);
  std::unique_ptr<LifeCheck> life_ ABSL_GUARDED_BY(acceptor_mutex_);
  std::atomic<bool> is_listening_ = false;
  // Ends first, since it reads everything above.
  std::unique_ptr<HttpListener> metrics_;
  std::unique_ptr<ThreadPool> watch_;  // Watches peers and memory while calls are served.
  std::unique_ptr<ThreadPool> certificate_watch_;
  std::unique_ptr<OnRequest> reload_;  // Null if there are no rules.
  bool drained_ = false;
};

// The options, with each memory limit that is 0 replaced by a share of the process's memory: three
// eighths, at most 4 GiB, for admission; a quarter for gRPC's buffers; an eighth for tensors. The
// last quarter is for the daemon itself and its threads.
ServerOptions WithMemoryShares(ServerOptions options);

}  // namespace gemmd
