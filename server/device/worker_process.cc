// SPDX-License-Identifier: Apache-2.0
#include "server/device/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/crossing/protocol.h"
#include "server/system/resources.h"

namespace gemmd {

namespace {

absl::Status Failed(std::string_view what, int error) {
  return absl::UnavailableError(Concat("worker: ", what, ": ", strerror(error)));
}

// Duplicates a descriptor above the worker's fixed numbers, so that dup2 of one does not close
// another.
absl::StatusOr<FileDescriptor> OutOfTheWay(int descriptor) {
  FileDescriptor copy(fcntl(descriptor, F_DUPFD_CLOEXEC, kLastWorkerFile + 1));
  if (!copy.is_open()) return Failed("copy of a file descriptor", errno);
  return copy;
}

// Actions of posix_spawn in the child before the program runs.
class Preparation {
 public:
  Preparation() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
  }
  ~Preparation() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  int PassFiles(int socket, int staging, int rings) {
    int error = posix_spawn_file_actions_adddup2(&actions_, socket, kWorkerSocket);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&actions_, staging, kWorkerStaging);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&actions_, rings, kWorkerRings);
    return error != 0 ? error
                      : posix_spawn_file_actions_addclosefrom_np(&actions_, kLastWorkerFile + 1);
  }

  // Resets the front's signal handling for the worker.
  int ForgetSignals() {
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    return posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }

  int Spawn(const WorkerProgram& program, pid_t* pid) const {
    std::string binary = program.binary;
    std::string device = program.device;
    std::string parent = std::to_string(getpid());
    std::string third = std::to_string(program.kind_arguments[0]);
    std::string fourth = std::to_string(program.kind_arguments[1]);
    std::string spin = std::to_string(program.spin_ns);
    std::string confined = program.is_confined ? "1" : "0";
    const std::array<char*, 8> arguments = {binary.data(),   device.data(), parent.data(),
                                            third.data(),    fourth.data(), spin.data(),
                                            confined.data(), nullptr};
    std::vector<std::string> variables = WorkerEnvironment(environ);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    return posix_spawn(pid, program.binary.c_str(), &actions_, &attributes_, arguments.data(),
                       program.is_confined ? environment.data() : environ);
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

int64_t DefaultSpinNs() {
  constexpr int kFewProcessors = 4;
  constexpr int kManyProcessors = 8;
  const int processors = UsableProcessors();
  if (processors < kFewProcessors) return 0;
  return processors < kManyProcessors ? 100'000 : 500'000;
}

std::vector<std::string> WorkerEnvironment(char** environment) {
  constexpr std::string_view kKept[] = {"CUDA_",
                                        "NVIDIA_",
                                        "LD_LIBRARY_PATH=",
                                        "GLIBC_TUNABLES=",
                                        "GEMMD_WORKER_",
                                        "ASAN_OPTIONS=",
                                        "LSAN_OPTIONS=",
                                        "TSAN_OPTIONS=",
                                        "UBSAN_OPTIONS=",
                                        "OMP_",
                                        "GOMP_",
                                        "OPENBLAS_",
                                        "ONEDNN_",
                                        "DNNL_"};
  std::vector<std::string> kept;
  for (; *environment != nullptr; ++environment) {
    const std::string_view variable = *environment;
    if (std::any_of(std::begin(kKept), std::end(kKept),
                    [&](std::string_view start) { return variable.starts_with(start); })) {
      kept.emplace_back(variable);
    }
  }
  return kept;
}

absl::Status WorkerProcess::Spawn(int staging) {
  const WorkerProgram& program = options_.program;
  if (access(program.binary.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        GotWant("worker-binary", program.binary,
                "a worker; builds without a CUDA toolkit have none for GPUs"));
  }
  FileDescriptor other_end;
  ASSIGN_OR_RETURN(Channel channel, Channel::Create(other_end));
  ASSIGN_OR_RETURN(const FileDescriptor worker_socket, OutOfTheWay(other_end.get()));
  ASSIGN_OR_RETURN(const FileDescriptor worker_staging, OutOfTheWay(staging));
  ASSIGN_OR_RETURN(const FileDescriptor worker_rings, OutOfTheWay(channel.rings()));
  Preparation preparation;
  pid_t pid = 0;
  int error = preparation.PassFiles(worker_socket.get(), worker_staging.get(), worker_rings.get());
  if (error == 0) error = preparation.ForgetSignals();
  if (error == 0) error = preparation.Spawn(program, &pid);
  if (error != 0) return Failed(Concat("start of ", program.binary), error);
  MutexLock lock(&mutex_);
  channel_ = std::move(channel);
  pid_ = pid;
  was_killed_ = false;
  return absl::OkStatus();
}

void WorkerProcess::Kill() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

std::optional<std::string> WorkerProcess::TryReap() {
  if (pid_ == 0) return end_;
  int how = 0;
  const pid_t reaped = waitpid(pid_, &how, WNOHANG);
  if (reaped == 0) return std::nullopt;
  pid_ = 0;
  if (reaped < 0) {
    end_ = Concat("lost sight of: ", strerror(errno));
  } else if (WIFSIGNALED(how)) {
    was_killed_ = WTERMSIG(how) == SIGKILL;
    end_ = Concat("signal ", WTERMSIG(how));
  } else {
    end_ = Concat("exit code ", WEXITSTATUS(how));
  }
  return end_;
}

bool WorkerProcess::IsStopped() const {
  if (pid_ == 0) return false;
  siginfo_t how = {};
  const bool is_known =
      waitid(P_PID, static_cast<id_t>(pid_), &how, WSTOPPED | WNOHANG | WNOWAIT) == 0;
  return is_known && how.si_pid == pid_ && how.si_code == CLD_STOPPED;
}

absl::StatusOr<Hello> WorkerProcess::Start(int staging) {
  if (std::exchange(was_started_, true)) ++restarts_;
  RETURN_IF_ERROR(Spawn(staging));
  ASSIGN_OR_RETURN(const Packet packet, Receive(options_.start_timeout));
  ASSIGN_OR_RETURN(const Hello hello, ParseRecord<Hello>(packet));
  RETURN_IF_ERROR(hello.status.get());
  if (hello.catalog == options_.catalog) return hello;
  return absl::FailedPreconditionError(
      GotWant("worker-binary", Concat(options_.program.binary, " with other kernels"),
              "one of the same build as gemmd"));
}

absl::StatusOr<Packet> WorkerProcess::Receive(absl::Duration timeout) {
  const int64_t until_ns = clock_.NowNs() + absl::ToInt64Nanoseconds(timeout);
  Packet packet;
  while (true) {
    const absl::Status received = channel_.TryReceive(packet);
    if (received.ok()) return packet;
    if (!absl::IsNotFound(received)) return received;
    if (clock_.NowNs() >= until_ns) {
      return absl::DeadlineExceededError(
          Concat("no message from the worker for ", absl::FormatDuration(timeout)));
    }
    RETURN_IF_ERROR(wait_(until_ns));
  }
}

void WorkerProcess::Sleep(int64_t until_ns, pollfd* other) {
  constexpr int64_t kTickNs = 100'000'000;
  const timespec limit = {.tv_sec = 0,
                          .tv_nsec = std::clamp(until_ns - clock_.NowNs(), int64_t{0}, kTickNs)};
  channel_.Sleep(&limit, other);
}

std::optional<std::string> WorkerProcess::AwaitEnd(absl::Duration patience) {
  constexpr int64_t kReapIntervalNs = 1'000'000;
  const int64_t until_ns = clock_.NowNs() + absl::ToInt64Nanoseconds(patience);
  {
    MutexLock lock(&mutex_);
    channel_.Close();
  }
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (std::optional<std::string> end = TryReap()) return end;
    }
    const int64_t now_ns = clock_.NowNs();
    if (now_ns >= until_ns) return std::nullopt;
    wait_(now_ns + kReapIntervalNs).IgnoreError();
  }
}

absl::Status WorkerProcess::NotReady(std::string_view why,
                                     const RestartPolicy::Pause& pause) const {
  const std::string rest = absl::FormatDuration(absl::Nanoseconds(pause.ns));
  return absl::UnavailableError(
      Concat("device: ", options_.device,
             pause.is_rest ? Concat(" is out of service after too many starts, for ", rest, ": ")
                           : " is starting again: ",
             why));
}

absl::Status WorkerProcess::LostProduct(bool was_started, std::string_view why) const {
  const std::string lost = Concat("device: ", options_.device, " was lost ");
  return was_started ? absl::AbortedError(Concat(lost, "while the product ran: ", why))
                     : absl::UnavailableError(Concat(lost, "before the product started: ", why));
}

}  // namespace gemmd
