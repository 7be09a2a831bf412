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
#include <limits>
#include <new>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/crossing/protocol.h"
#include "server/system/log.h"
#include "server/system/resources.h"

namespace gemmd {

namespace {

absl::Status Failed(std::string_view what, int error) {
  return absl::UnavailableError(Concat("worker: ", what, ": ", strerror(error)));
}

// A copy above the numbers that the worker finds its files under, so that putting one in place does
// not close the other.
absl::StatusOr<FileDescriptor> OutOfTheWay(int descriptor) {
  FileDescriptor copy(fcntl(descriptor, F_DUPFD_CLOEXEC, kLastWorkerFile + 1));
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

  int PassFiles(int socket, int staging, int rings) {
    int error = posix_spawn_file_actions_adddup2(&actions_, socket, kWorkerSocket);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&actions_, staging, kWorkerStaging);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&actions_, rings, kWorkerRings);
    return error != 0 ? error
                      : posix_spawn_file_actions_addclosefrom_np(&actions_, kLastWorkerFile + 1);
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

  int Spawn(const WorkerProgram& program, pid_t* pid) const {
    std::string binary = program.binary;
    std::string device = program.device;
    std::string parent = std::to_string(getpid());
    std::string third = std::to_string(program.numbers[0]);
    std::string fourth = std::to_string(program.numbers[1]);
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

absl::StatusOr<WorkerProcess> WorkerProcess::Start(const WorkerProgram& program, int staging) {
  if (access(program.binary.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        GotWant("worker-binary", program.binary,
                "a worker; builds without a CUDA toolkit have none for GPUs"));
  }
  WorkerProcess process;
  FileDescriptor other_end;
  ASSIGN_OR_RETURN(process.channel_, Channel::Create(other_end));
  ASSIGN_OR_RETURN(const FileDescriptor worker_socket, OutOfTheWay(other_end.get()));
  ASSIGN_OR_RETURN(const FileDescriptor worker_staging, OutOfTheWay(staging));
  ASSIGN_OR_RETURN(const FileDescriptor worker_rings, OutOfTheWay(process.channel_.rings()));
  Preparation preparation;
  int error = preparation.PassFiles(worker_socket.get(), worker_staging.get(), worker_rings.get());
  if (error == 0) error = preparation.ForgetSignals();
  if (error == 0) error = preparation.Spawn(program, &process.pid_);
  if (error != 0) return Failed(Concat("start of ", program.binary), error);
  return process;
}

WorkerProcess& WorkerProcess::operator=(WorkerProcess&& other) noexcept {
  std::swap(channel_, other.channel_);
  std::swap(pid_, other.pid_);
  std::swap(end_, other.end_);
  std::swap(was_killed_, other.was_killed_);
  return *this;
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
  const bool is_told =
      waitid(P_PID, static_cast<id_t>(pid_), &how, WSTOPPED | WNOHANG | WNOWAIT) == 0;
  return is_told && how.si_pid == pid_ && how.si_code == CLD_STOPPED;
}

namespace {

constexpr int64_t kScratchKeptBytes = int64_t{4} << 20;
constexpr int64_t kScratchAlignment = 64;

// How often somebody looks whether a worker still works.
constexpr timespec kLookInterval = {.tv_sec = 0, .tv_nsec = 100'000'000};

// For what takes longer no processor is kept busy: the kernel's threads may need it.
constexpr int64_t kLongestToSpinForNs = 100'000;

// A worker that was killed is gone at once, but for one that hangs in the kernel.
constexpr absl::Duration kTimeToDie = absl::Seconds(10);

int64_t Aligned(int64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

}  // namespace

// The matrices of one launch, as the worker sees them.
class ProcessLauncher::Passed {
 public:
  explicit Passed(ProcessLauncher& launcher) : launcher_(launcher) {}

  // Notes a matrix; it is copied to the worker before the launch where it is not in shared memory
  // and `is_read`, and back after it where it `is_written`.
  void Add(SharedRange& range, const std::byte* memory, int64_t bytes, bool is_read,
           bool is_written) {
    if (memory == nullptr || bytes == 0) return;
    range.bytes = bytes;
    if (const std::optional<int64_t> offset = launcher_.memory_.OffsetOf(memory)) {
      range.offset = *offset;
      return;
    }
    copies_[used_++] = {&range, const_cast<std::byte*>(memory), is_read, is_written};
    scratch_bytes_ += Aligned(bytes);
  }

  // Errors: ResourceExhausted.
  absl::Status CopyIn() {
    if (used_ == 0) return absl::OkStatus();
    std::byte* at = launcher_.TakeScratch(scratch_bytes_);
    if (at == nullptr) {
      return absl::ResourceExhaustedError(
          Concat("job: no memory for ", scratch_bytes_, " bytes that a worker is to see"));
    }
    for (const Copy& copy : absl::MakeSpan(copies_).first(used_)) {
      const auto bytes = static_cast<size_t>(copy.range->bytes);
      copy.range->offset = *launcher_.memory_.OffsetOf(at);
      if (copy.is_read) std::memcpy(at, copy.memory, bytes);
      at += Aligned(copy.range->bytes);
    }
    return absl::OkStatus();
  }

  void CopyOut() const {
    const std::byte* at = launcher_.scratch_;
    for (const Copy& copy : absl::MakeConstSpan(copies_).first(used_)) {
      if (copy.is_written) std::memcpy(copy.memory, at, static_cast<size_t>(copy.range->bytes));
      at += Aligned(copy.range->bytes);
    }
  }

  absl::Span<std::byte> scratch() const {
    return {launcher_.scratch_, static_cast<size_t>(scratch_bytes_)};
  }

 private:
  struct Copy {
    SharedRange* range = nullptr;
    std::byte* memory = nullptr;
    bool is_read = false;
    bool is_written = false;
  };
  static constexpr size_t kMost = 11;

  ProcessLauncher& launcher_;
  std::array<Copy, kMost> copies_;
  size_t used_ = 0;
  int64_t scratch_bytes_ = 0;
};

ProcessLauncher::ProcessLauncher(Options options, SharedMemory& memory)
    : options_(std::move(options)),
      memory_(memory),
      control_(*new (memory.Take(sizeof(LaunchControl))) LaunchControl),
      restart_policy_({.restarts = std::numeric_limits<int>::max(),
                       .window_ns = 10'000'000'000,
                       .longest_pause_ns = 1'000'000'000}) {}

ProcessLauncher::~ProcessLauncher() {
  End();
  Cool();
  memory_.GiveBack(reinterpret_cast<std::byte*>(&control_), sizeof(control_));
}

absl::Status ProcessLauncher::Start() {
  // One that is gone or stopped shows when it is asked.
  if (process_.channel().is_open()) return absl::OkStatus();
  if (process_.pid() != 0) {
    const std::string end = End();
    // It would write into memory of the next one's launches.
    if (process_.pid() != 0) {
      return absl::UnavailableError(Concat("device: ", options_.program.device,
                                           " is out of service: its worker was killed, and ", end));
    }
  }
  if (std::exchange(was_started_, true)) {
    absl::SleepFor(absl::Nanoseconds(restart_policy_.Next(clock_.NowNs()).ns));
    ++restarts_;
  }
  ASSIGN_OR_RETURN(process_, WorkerProcess::Start(options_.program, memory_.descriptor()));
  const absl::Status greeted = Greet();
  if (!greeted.ok()) End();
  pid_ = process_.pid();
  if (greeted.ok() && std::exchange(is_lost_, false)) {
    spdlog::info("event=device_ready device={}", LogValue(options_.program.device));
  }
  return greeted;
}

absl::Status ProcessLauncher::Restart() {
  Lose("an operator wants another worker");
  return Start();
}

absl::Status ProcessLauncher::Greet() {
  const int64_t until_ns = clock_.NowNs() + absl::ToInt64Nanoseconds(options_.start_timeout);
  Packet packet;
  while (true) {
    const absl::Status received = process_.channel().TryReceive(packet);
    if (received.ok()) break;
    if (!absl::IsNotFound(received)) return absl::UnavailableError(Concat("worker: ", End()));
    if (clock_.NowNs() >= until_ns) {
      return absl::DeadlineExceededError(
          Concat("the worker said nothing for ", absl::FormatDuration(options_.start_timeout)));
    }
    process_.channel().Sleep(&kLookInterval);
  }
  ASSIGN_OR_RETURN(hello_, ParseRecord<Hello>(packet));
  RETURN_IF_ERROR(hello_.status.get());
  if (hello_.catalog == options_.catalog) return absl::OkStatus();
  return absl::FailedPreconditionError(
      GotWant("worker", Concat(options_.program.binary, " with other kernels"),
              "one of the same build as gemmd"));
}

// Ends the worker, and tells how it ended.
std::string ProcessLauncher::End() {
  pid_ = 0;
  process_.channel().Close();
  const int64_t until_ns = clock_.NowNs() + absl::ToInt64Nanoseconds(kTimeToDie);
  // One that has ended by itself tells of itself, not of the signal that it gets here.
  std::optional<std::string> end = process_.TryReap();
  if (!end) process_.Kill();
  while (!end && clock_.NowNs() < until_ns) {
    absl::SleepFor(absl::Milliseconds(1));
    end = process_.TryReap();
  }
  return end.value_or("it does not die");
}

// Ends a worker that is of no more use, as the log says, and tells why and how it ended.
std::string ProcessLauncher::Lose(const std::string& reason) {
  const std::string why = Concat(reason, " (", End(), ")");
  is_lost_ = true;
  spdlog::error("event=device_not_ready device={} reason={}", LogValue(options_.program.device),
                LogValue(Concat("device: ", options_.program.device, " is starting again: ", why)));
  return why;
}

std::byte* ProcessLauncher::TakeScratch(int64_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  Cool();
  scratch_ = memory_.Take(bytes);
  scratch_bytes_ = scratch_ == nullptr ? 0 : bytes;
  return scratch_;
}

void ProcessLauncher::Cool() {
  if (scratch_ != nullptr) memory_.GiveBack(scratch_, scratch_bytes_);
  scratch_ = nullptr;
  scratch_bytes_ = 0;
}

absl::Status ProcessLauncher::Launch(const LaunchTask& task) {
  died_of_launch_ = false;
  const GemmArgs& args = task.args;
  LaunchRequest request;
  request.kernel = static_cast<uint32_t>(task.kernel.position);
  request.is_a_form_made = args.a_form.is_made ? 1 : 0;
  request.is_b_form_made = args.b_form.is_made ? 1 : 0;
  request.workspace_bytes = task.workspace_bytes;
  request.problem = args.problem;
  Passed passed(*this);
  const auto read = [&](SharedRange& range, const std::byte* memory, int64_t bytes) {
    passed.Add(range, memory, bytes, /*is_read=*/true, /*is_written=*/false);
  };
  const auto floats = [&](SharedRange& range, absl::Span<const float> values) {
    read(range, reinterpret_cast<const std::byte*>(values.data()),
         static_cast<int64_t>(values.size() * sizeof(float)));
  };
  read(request.a, args.a, task.a_bytes);
  read(request.b, args.b, task.b_bytes);
  read(request.c, args.c, task.c_bytes);
  read(request.bias, args.bias, task.bias_bytes);
  floats(request.a_scale, args.a_scale);
  floats(request.b_scale, args.b_scale);
  read(request.a_factors, args.a_factors, task.a_scale_bytes);
  read(request.b_factors, args.b_factors, task.b_scale_bytes);
  passed.Add(request.a_form, args.a_form.bytes, task.a_form_bytes, args.a_form.is_made,
             !args.a_form.is_made);
  passed.Add(request.b_form, args.b_form.bytes, task.b_form_bytes, args.b_form.is_made,
             !args.b_form.is_made);
  // What lies between the lines of D stays as it is.
  passed.Add(request.d, args.d, task.d_bytes, /*is_read=*/true, /*is_written=*/true);
  read(request.control, reinterpret_cast<const std::byte*>(&control_), sizeof(control_));
  RETURN_IF_ERROR(passed.CopyIn());
  const absl::Duration most =
      std::max(absl::Nanoseconds(options_.watchdog_factor * static_cast<double>(task.predicted_ns)),
               options_.watchdog_least);
  const bool is_short = task.predicted_ns <= kLongestToSpinForNs;
  ASSIGN_OR_RETURN(const Result result, Ask(request, is_short ? options_.program.spin_ns : 0,
                                            absl::ToInt64Nanoseconds(most)));
  const absl::Status status = result.status.get();
  if (status.ok()) passed.CopyOut();
  if (options_.program.numbers[1] != 0) Poison(passed.scratch());
  if (scratch_bytes_ > kScratchKeptBytes) Cool();
  return status;
}

// Has a worker answer the request. One that is lost before it begins has a successor, which is
// asked instead.
absl::StatusOr<Result> ProcessLauncher::Ask(LaunchRequest& request, int64_t spin_ns,
                                            int64_t most_ns) {
  constexpr int kMostTries = 3;
  std::string why;
  for (int i = 0; i < kMostTries; ++i) {
    RETURN_IF_ERROR(Start());
    request.id = ++last_id_;
    const absl::Status sent = SendRecord(process_.channel(), request);
    const absl::StatusOr<Result> result = sent.ok() ? Await(request.id, spin_ns, most_ns) : sent;
    if (result.ok()) return result;
    why = Lose(std::string(result.status().message()));
    if (control_.started_id == request.id) {
      died_of_launch_ = absl::IsDeadlineExceeded(result.status()) || !process_.was_killed();
      return absl::AbortedError(
          Concat("device: ", options_.program.device, " was lost while the product ran: ", why));
    }
  }
  return absl::UnavailableError(
      Concat("device: ", options_.program.device, " was lost before the product started: ", why));
}

// Errors: why the worker will not answer.
absl::StatusOr<Result> ProcessLauncher::Await(uint64_t id, int64_t spin_ns, int64_t most_ns) {
  const int64_t begin_ns = clock_.NowNs();
  Channel& channel = process_.channel();
  Packet packet;
  while (true) {
    const absl::Status received = channel.TryReceive(packet);
    if (received.ok()) break;
    if (!absl::IsNotFound(received)) return received;
    const int64_t now_ns = clock_.NowNs();
    if (now_ns - begin_ns < spin_ns) {
      PauseProcessor();
      continue;
    }
    if (now_ns - begin_ns >= most_ns) {
      return absl::DeadlineExceededError(
          Concat("no answer within ", absl::FormatDuration(absl::Nanoseconds(most_ns))));
    }
    channel.Sleep(&kLookInterval);
    if (!channel.HasNews() && process_.IsStopped()) return absl::AbortedError("it was stopped");
  }
  ASSIGN_OR_RETURN(const Result result, ParseRecord<Result>(packet));
  if (result.id != id) return absl::InternalError("it answered what was not asked");
  return result;
}

}  // namespace gemmd
