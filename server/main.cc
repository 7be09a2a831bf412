// SPDX-License-Identifier: Apache-2.0
//
// gemmd: parses options, starts the server, waits for a signal, drains. Exit codes: 0 stopped as
// asked; 1 could not start, or products were left at the end of the grace period; 2 invalid
// options.
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <linux/futex.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/cpu/library_settings.h"
#include "kernels/matrix/status.h"
#include "server/device/devices.h"
#include "server/options.h"
#include "server/server.h"
#include "server/system/clock.h"
#include "server/system/log.h"
#include "server/system/mutex.h"
#include "server/system/resources.h"
#include "server/system/service_manager.h"
#include "server/system/version.h"
#include "server/wire/transport.h"

// Makes timed waits in libraries use the steady clock. Abseil 20220623, and with it all of gRPC
// 1.51, waits until a time of the wall clock. If the wall clock were set back by an hour, gRPC's
// timers for handshakes, pings and the ages of connections would stop for an hour.
//
// Abseil waits through the C library's function `syscall`. This program defines its own `syscall`,
// which all libraries use in its place. It changes only those waits and passes everything else on.
namespace {

using Word = long;  // NOLINT(google-runtime-int): as the C library declares it.
using Syscall = Word (*)(Word, ...);

constexpr int64_t kNsPerSecond = 1'000'000'000;

int64_t InNs(const timespec& time) { return time.tv_sec * kNsPerSecond + time.tv_nsec; }

int64_t TimeNs(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return InNs(now);
}

// The time that the steady clock will show when the wall clock shows `until`, unless the wall clock
// is set meanwhile.
timespec OnSteadyClock(const timespec& until) {
  const int64_t left_ns = InNs(until) - TimeNs(CLOCK_REALTIME);
  const int64_t ns = std::max(TimeNs(CLOCK_MONOTONIC) + left_ns, int64_t{0});
  return {.tv_sec = ns / kNsPerSecond, .tv_nsec = ns % kNsPerSecond};
}

bool IsUntilWallTime(Word operation) {
  return (operation & ~FUTEX_PRIVATE_FLAG) == (FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME);
}

Syscall LibrarysSyscall() {
  // Not a static local variable: the guard of one may itself wait by calling `syscall`.
  static constinit Syscall found = nullptr;
  Syscall known = __atomic_load_n(&found, __ATOMIC_RELAXED);
  if (known == nullptr) {
    known = reinterpret_cast<Syscall>(dlsym(RTLD_NEXT, "syscall"));
    __atomic_store_n(&found, known, __ATOMIC_RELAXED);
  }
  return known;
}

}  // namespace

// Callers pass as many words as their call has. What is read beyond those is passed on and ignored.
extern "C" [[gnu::no_sanitize_address]] Word syscall(Word number, ...) noexcept {
  Word words[6];
  va_list rest;
  va_start(rest, number);
  for (Word& word : words) word = va_arg(rest, Word);
  va_end(rest);
  timespec until = {};
  if (number == SYS_futex && IsUntilWallTime(words[1]) && words[3] != 0) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it came as a pointer.
    until = OnSteadyClock(*reinterpret_cast<const timespec*>(words[3]));
    words[1] &= ~Word{FUTEX_CLOCK_REALTIME};
    words[3] = reinterpret_cast<Word>(&until);
  }
  return LibrarysSyscall()(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

namespace gemmd {
namespace {

void PreferBetterLibrarySettings(char** argv) {
  // Threads without work sleep. By default they spin for a while after each product: on 16
  // processors, with 2,000 small products a second, that took 22 times as much processor time and
  // made the p99 11 times as long.
  const bool user_says_how_to_wait = IsSetInEnvironment("GOMP_SPINCOUNT");
  const LibrarySetting settings[] = {{"OPENBLAS_CORETYPE", BetterBlasCore()},
                                     {"OMP_WAIT_POLICY", user_says_how_to_wait ? "" : "passive"}};
  PreferSettings(settings, argv);
}

// gRPC 1.51 supports no minimum version of TLS other than 1.2. So for TLS 1.2 it gets a single
// cipher, which needs a pre-shared key; no peer has one, so only TLS 1.3 is left, whose ciphers
// OpenSSL chooses. Overwrites the environment, which otherwise could weaken the daemon. Threads:
// called before any other thread exists.
void AllowNothingBelowTls13() {
  setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES256-GCM-SHA384", 1);  // NOLINT(concurrency-mt-unsafe)
}

// The log. The destructor writes it out, as far as its reader takes it.
class Logging {
 public:
  Logging(const Options& options, const Clock& clock) : sink_(MakeSink(options, clock)) {
    auto logger = std::make_shared<spdlog::logger>("gemmd", sink_);
    logger->set_level(spdlog::level::from_str(options.log_level));
    spdlog::set_default_logger(std::move(logger));
    RouteGrpcLog();
    RouteProtobufLog();
  }

  // A reader that does not read must not delay the exit.
  ~Logging() { WriteOut(absl::Seconds(1)); }

  // Waits up to `patience` until the reader has taken what was logged.
  void WriteOut(absl::Duration patience) const { sink_->Close(patience); }

  LogCounts counts() const { return sink_->counts(); }

 private:
  static std::shared_ptr<LogSink> MakeSink(const Options& options, const Clock& clock) {
    LogSink::Options sink_options;
    sink_options.format = options.log_format;
    return std::make_shared<LogSink>(LogFile::StandardError(), sink_options, clock);
  }

  const std::shared_ptr<LogSink> sink_;
};

// The audit log, if one was requested, for as long as this object lives.
class Auditing {
 public:
  // About 400 KB: a disk can write that, and few daemons answer more calls per second for long.
  static constexpr int64_t kLinesPerSecond = 1000;

  static absl::StatusOr<std::unique_ptr<Auditing>> Start(const Options& options,
                                                         const Clock& clock) {
    if (options.audit_log.empty()) return std::make_unique<Auditing>(nullptr);
    LogFile file = LogFile::StandardError();
    if (options.audit_log != "stderr") {
      ASSIGN_OR_RETURN(file, LogFile::Open(options.audit_log));
    }
    return std::make_unique<Auditing>(
        std::make_shared<AuditSink>(std::move(file), kLinesPerSecond, clock));
  }

  explicit Auditing(std::shared_ptr<AuditSink> sink) : sink_(std::move(sink)) {
    SetAuditLog(sink_);
  }
  Auditing(const Auditing&) = delete;
  Auditing& operator=(const Auditing&) = delete;
  ~Auditing() {
    SetAuditLog(nullptr);
    WriteOut(absl::Seconds(1));
  }

  void WriteOut(absl::Duration patience) const {
    if (sink_ != nullptr) sink_->Close(patience);
  }

  void Reopen() const {
    if (sink_ != nullptr) sink_->Reopen();
  }

  int64_t lost() const { return sink_ == nullptr ? 0 : sink_->lost(); }

 private:
  const std::shared_ptr<AuditSink> sink_;
};

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no threads yet.
  return value == nullptr ? "" : value;
}

// The service manager that started the daemon, if any.
struct Supervision {
  ServiceManager manager{Environment("NOTIFY_SOCKET")};
  absl::Duration watchdog = WatchdogTime(Environment("WATCHDOG_USEC"), Environment("WATCHDOG_PID"));
};

void FeedWatchdog(const Supervision& supervision, LifeCheck::Options& life_check) {
  life_check.TieTo(supervision.watchdog);
  life_check.on_alive = [&supervision] { supervision.manager.Tell("WATCHDOG=1"); };
}

// Waits for one of the signals, for at most `timeout`. Returns 0 if none came.
int WaitForSignal(const sigset_t& signals, absl::Duration timeout) {
  const timespec limit = absl::ToTimespec(timeout);
  const int signal = sigtimedwait(&signals, nullptr, &limit);
  return signal > 0 ? signal : 0;
}

// Ensures that the process ends soon after the grace if products are left, and little later if none
// are. A signal ends the grace. If a device then does not release an aborted job, or if the disk of
// a file being reloaded does not respond, the process exits without waiting for it.
class EndWatch {
 public:
  // Borrows all arguments. Starts its thread right away, because memory may be short at the end.
  EndWatch(const sigset_t& signals, ReadyFile& ready_file, const Logging& logging,
           const Auditing& auditing)
      : signals_(signals),
        ready_file_(ready_file),
        logging_(logging),
        auditing_(auditing),
        thread_([this] { Run(); }) {}
  ~EndWatch() { End(); }

  // Drains the server. Keeps watching until this object is destroyed, which must be after the
  // server.
  absl::Status Drain(Server& server, absl::Duration grace) {
    {
      MutexLock lock(&mutex_);
      server_ = &server;
      grace_ = grace;
    }
    const absl::Status status = server.Drain(grace);
    {
      MutexLock lock(&mutex_);
      server_ = nullptr;
    }
    if (status.ok()) {
      is_drained_ = true;
      pthread_kill(thread_.native_handle(), SIGTERM);  // Ends its wait for the end of the grace.
    }
    return status;
  }

 private:
  // Devices abort within 50 ms, and the last answers have 100 ms to leave; the rest is for slow
  // machines.
  static constexpr absl::Duration kLongestEnd = absl::Milliseconds(750);
  // For workers to exit by themselves when no product is left.
  static constexpr absl::Duration kLongestEndOfDrained = absl::Seconds(10);
  // Per log: nothing else writes the logs out if the process exits without its destructors.
  static constexpr absl::Duration kLongestWriting = absl::Milliseconds(100);

  void Run() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Duration grace;
    {
      MutexLock lock(&mutex_);
      mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return grace_ || is_over_; });
      if (is_over_) return;
      grace = *grace_;
    }
    Watch(grace);
  }

  void Watch(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (const int signal = WaitForSignal(signals_, grace);
        signal != 0 && !is_over_ && !is_drained_) {
      spdlog::info("event=grace_ended signal={}", signal);
      MutexLock lock(&mutex_);
      if (server_ != nullptr) server_->EndGrace();
    }
    const SteadyClock clock;
    const int64_t begun_ns = clock.NowNs();
    while (!is_over_) {
      // Whether the server is drained may change during the wait.
      const absl::Duration longest = is_drained_ ? kLongestEndOfDrained : kLongestEnd;
      const int64_t left_ns = begun_ns + absl::ToInt64Nanoseconds(longest) - clock.NowNs();
      if (left_ns <= 0) break;
      WaitForSignal(signals_, absl::Nanoseconds(left_ns));
    }
    if (is_over_) return;
    spdlog::error("event=stop code=DEADLINE_EXCEEDED reason=\"a {} does not respond\"",
                  is_drained_ ? "device or file" : "device");
    ready_file_.Remove();
    logging_.WriteOut(kLongestWriting);
    auditing_.WriteOut(kLongestWriting);
    std::_Exit(1);
  }

  void End() {
    if (!thread_.joinable()) return;
    {
      MutexLock lock(&mutex_);
      is_over_ = true;
    }
    pthread_kill(thread_.native_handle(), SIGTERM);  // Ends its wait for a signal.
    thread_.join();
  }

  const sigset_t signals_;
  ReadyFile& ready_file_;
  const Logging& logging_;
  const Auditing& auditing_;
  std::atomic<bool> is_over_ = false;
  std::atomic<bool> is_drained_ = false;  // No product was left.
  Mutex mutex_;
  Server* server_ ABSL_GUARDED_BY(mutex_) = nullptr;             // While the server drains.
  std::optional<absl::Duration> grace_ ABSL_GUARDED_BY(mutex_);  // Set when the drain starts.
  std::thread thread_;
};

absl::Status Run(Options options, const Logging& logging, const Auditing& auditing,
                 const Supervision& supervision, const sigset_t& signals) {
  const ServiceManager& manager = supervision.manager;
  options.server.log_counts = [&logging, &auditing] {
    LogCounts counts = logging.counts();
    counts.audit_lost = auditing.lost();
    return counts;
  };
  ASSIGN_OR_RETURN(const int64_t open_files, RaiseOpenFileLimit());
  spdlog::info("event=start version={} commit={} pid={} open_files={} memory_limit_bytes={}",
               kVersion, kCommit, getpid(), open_files,
               WithMemoryShares(options.server).memory_limit_bytes);
  for (const RowFault& fault : options.devices.cpu_faults) {
    spdlog::error("event=kernel_left_out device=cpu kernel={} reason={}", fault.kernel->name,
                  LogValue(fault.reason));
  }
  // Reports whatever can be checked before the devices are made, which takes seconds.
  RETURN_IF_ERROR(CheckTls(options.server.transport, options.server.metrics_listen));
  ReadyFile ready_file(options.ready_file);
  RETURN_IF_ERROR(ready_file.Check());
  RETURN_IF_ERROR(Server::CheckAddresses(options.server));
  manager.Tell("STATUS=Checking the devices");
  FeedWatchdog(supervision, options.server.life_check);
  // A joined launch is copied to the staging area at once.
  int64_t& joined_bytes = options.server.joins.limits.max_bytes;
  joined_bytes = std::min(joined_bytes, options.devices.gpu_staging_bytes / 4);
  EndWatch end_watch(signals, ready_file, logging, auditing);
  ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Device>> devices, MakeDevices(options.devices));
  ASSIGN_OR_RETURN(const std::unique_ptr<Server> server,
                   Server::Start(options.server, std::move(devices)));
  RETURN_IF_ERROR(ready_file.Write(server->addresses()));
  sigset_t awaited = signals;
  sigaddset(&awaited, SIGHUP);
  manager.Tell(
      absl::StrCat("READY=1\nSTATUS=Serving on ", absl::StrJoin(server->addresses(), ", ")));
  spdlog::info("event=serving");

  int signal = 0;
  while (true) {
    sigwait(&awaited, &signal);
    if (signal != SIGHUP) break;
    auditing.Reopen();
    server->Reload();
  }
  spdlog::info("event=lame_duck signal={} duration={}", signal,
               absl::FormatDuration(options.lame_duck));
  manager.Tell("STOPPING=1\nSTATUS=Serving for --lame-duck, then stopping");
  server->EnterLameDuck();
  const bool is_urgent = WaitForSignal(signals, options.lame_duck) != 0;
  const absl::Duration grace = is_urgent ? absl::ZeroDuration() : options.grace;
  manager.Tell("STATUS=Finishing accepted products");
  return end_watch.Drain(*server, grace);
}

int Main(int argc, char** argv) {
  ParsedOptions parsed = ParseOptions(argc, argv);
  if (!parsed.should_run) {
    std::fputs(parsed.text.c_str(), parsed.exit_code == 0 ? stdout : stderr);
    return parsed.exit_code;
  }
  // Before any thread exists, so that it applies to all threads and to the workers.
  if (parsed.options.devices.is_worker_confined) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  PreferBetterLibrarySettings(argv);
  parsed.options.devices.cpu_faults = FindCpuFaults(parsed.options.devices);
  AllowNothingBelowTls13();
  KeepLittleFreeMemory(UsableProcessors());
  // Blocked before any thread exists, so that only a thread that waits for signals receives them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigset_t blocked = signals;
  sigaddset(&blocked, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);

  // The reader of the log may go away, and files may reach `ulimit -f`; then writing fails, with no
  // other effect.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);

  const Supervision supervision;
  const SteadyClock clock;
  const Logging logging(parsed.options, clock);
  const auto auditing = Auditing::Start(parsed.options, clock);
  if (!auditing.ok()) {
    std::fprintf(stderr, "gemmd: audit-log: %s\n",
                 std::string(auditing.status().message()).c_str());
    return 2;
  }
  absl::Status status = PrepareForFewAddresses();
  if (status.ok()) {
    // Never undone: the last user of gRPC waits for gRPC's threads, and in gRPC 1.51 one of them
    // may poll for up to 10 s for a write that finished long ago.
    grpc_init();
    status = Run(parsed.options, logging, **auditing, supervision, signals);
  }
  if (!status.ok()) {
    spdlog::error("event=stop code={} reason={}", absl::StatusCodeToString(status.code()),
                  LogValue(TextOf(parsed.places, std::string(status.message()))));
    return 1;
  }
  spdlog::info("event=stop code=OK");
  return 0;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) {
  // gRPC uses Abseil's mutexes, and Debian's Abseil is built with deadlock detection, which takes a
  // lock of the whole process for each mutex.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return gemmd::Main(argc, argv);
}
