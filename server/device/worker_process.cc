// SPDX-License-Identifier: Apache-2.0
#include "server/device/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/crossing/protocol.h"
#include "server/system/resources.h"

namespace gemmd {

namespace {

absl::Status Failed(std::string_view what, int error) {
  return absl::UnavailableError(Concat("worker: ", what, ": ", strerror(error)));
}

// A copy above the numbers that the worker finds its files under, so that putting one in place does
// not close the other.
absl::StatusOr<FileDescriptor> OutOfTheWay(int descriptor) {
  FileDescriptor copy(fcntl(descriptor, F_DUPFD_CLOEXEC, kWorkerStaging + 1));
  if (!copy.is_open()) return Failed("copy of a file descriptor", errno);
  return copy;
}

// What posix_spawn does in the child before the program runs.
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

  int PassFiles(int socket, int staging) {
    int error = posix_spawn_file_actions_adddup2(&actions_, socket, kWorkerSocket);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&actions_, staging, kWorkerStaging);
    return error != 0 ? error
                      : posix_spawn_file_actions_addclosefrom_np(&actions_, kWorkerStaging + 1);
  }

  // What the front does with signals is not for the worker.
  int ForgetSignals() {
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    return posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }

  int Spawn(const WorkerCommand& command, pid_t* pid) const {
    std::string binary = command.binary;
    std::string ordinal = std::to_string(command.ordinal);
    std::string parent = std::to_string(getpid());
    std::string limit = std::to_string(command.memory_limit_bytes);
    std::string tensors = std::to_string(command.tensor_limit_bytes);
    std::string spin = std::to_string(command.spin_ns);
    std::string confined = command.is_confined ? "1" : "0";
    const std::array<char*, 8> arguments = {binary.data(),   ordinal.data(), parent.data(),
                                            limit.data(),    tensors.data(), spin.data(),
                                            confined.data(), nullptr};
    std::vector<std::string> variables = WorkerEnvironment(environ);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    return posix_spawn(pid, command.binary.c_str(), &actions_, &attributes_, arguments.data(),
                       command.is_confined ? environment.data() : environ);
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
  constexpr std::string_view kKept[] = {
      "CUDA_",         "NVIDIA_",       "LD_LIBRARY_PATH=", "GLIBC_TUNABLES=", "GEMMD_WORKER_",
      "ASAN_OPTIONS=", "LSAN_OPTIONS=", "TSAN_OPTIONS=",    "UBSAN_OPTIONS="};
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

absl::StatusOr<WorkerProcess> WorkerProcess::Start(const WorkerCommand& command, int staging) {
  if (access(command.binary.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        GotWant("worker-binary", command.binary,
                "a worker for GPUs, which builds without a CUDA toolkit do not have"));
  }
  std::array<int, 2> pair = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return Failed("socket pair", errno);
  }
  WorkerProcess process;
  process.socket_ = FileDescriptor(pair[0]);
  const FileDescriptor other_end(pair[1]);
  ASSIGN_OR_RETURN(const FileDescriptor worker_socket, OutOfTheWay(other_end.get()));
  ASSIGN_OR_RETURN(const FileDescriptor worker_staging, OutOfTheWay(staging));
  Preparation preparation;
  int error = preparation.PassFiles(worker_socket.get(), worker_staging.get());
  if (error == 0) error = preparation.ForgetSignals();
  if (error == 0) error = preparation.Spawn(command, &process.pid_);
  if (error != 0) return Failed(Concat("start of ", command.binary), error);
  return process;
}

WorkerProcess& WorkerProcess::operator=(WorkerProcess&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(pid_, other.pid_);
  return *this;
}

void WorkerProcess::Kill() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

std::optional<std::string> WorkerProcess::TryReap() {
  if (pid_ == 0) return "not started";
  int how = 0;
  const pid_t reaped = waitpid(pid_, &how, WNOHANG);
  if (reaped == 0) return std::nullopt;
  pid_ = 0;
  if (reaped < 0) return Concat("lost sight of: ", strerror(errno));
  if (WIFSIGNALED(how)) return Concat("signal ", WTERMSIG(how));
  return Concat("exit code ", WEXITSTATUS(how));
}

}  // namespace gemmd
