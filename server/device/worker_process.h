// SPDX-License-Identifier: Apache-2.0
//
// A worker as a process: started, ended and waited for by the front, and started again. And what
// runs kernels of the host in one.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/crossing/channel.h"
#include "server/crossing/launcher.h"
#include "server/crossing/protocol.h"
#include "server/crossing/staging.h"
#include "server/system/clock.h"
#include "server/system/files.h"

namespace gemmd {

// Half a millisecond; less on a machine of few processors, and nothing below four.
int64_t DefaultSpinNs();

// A worker's program, and how it is called.
struct WorkerProgram {
  std::string binary;
  std::string device = {};              // The first argument.
  std::array<int64_t, 2> numbers = {};  // The third and the fourth one.
  int64_t spin_ns = 0;
  bool is_confined = true;
};

// The worker of a GPU.
struct WorkerCommand {
  std::string binary;
  int ordinal = 0;
  int64_t memory_limit_bytes = 0;  // As WorkerOptions.
  int64_t tensor_limit_bytes = 0;  // As WorkerOptions.
  // Between jobs, the front's thread and the worker look for the next record for so long before
  // they sleep: waking them takes longer than a small job.
  int64_t spin_ns = DefaultSpinNs();
  // Whether it gives up its rights and gets WorkerEnvironment() in place of all of the front's.
  bool is_confined = true;

  WorkerProgram program() const {
    return {.binary = binary,
            .device = std::to_string(ordinal),
            .numbers = {memory_limit_bytes, tensor_limit_bytes},
            .spin_ns = spin_ns,
            .is_confined = is_confined};
  }
};

// The variables that a confined worker gets: those of the GPU's driver and its libraries, those of
// libraries for the CPU and their threads, the loader's folders, and the tests' own.
std::vector<std::string> WorkerEnvironment(char** environment);

class WorkerProcess {
 public:
  // The process sees the worker's end of the channel and the staging area, and no other file of the
  // front but standard input, output and error. The kernel ends it with the calling thread.
  // `staging` is the file that it finds as kWorkerStaging.
  // Errors: FailedPrecondition where there is no such binary; Unavailable.
  static absl::StatusOr<WorkerProcess> Start(const WorkerProgram& program, int staging);

  WorkerProcess() = default;
  WorkerProcess(WorkerProcess&& other) noexcept { *this = std::move(other); }
  WorkerProcess& operator=(WorkerProcess&& other) noexcept;

  // Closing it asks the process to end.
  Channel& channel() { return channel_; }
  const Channel& channel() const { return channel_; }
  pid_t pid() const { return pid_; }

  void Kill();

  // How it ended, "exit code 1" or "signal 9"; nothing while it runs. Does not wait.
  std::optional<std::string> TryReap();

  // Whether SIGKILL ended it: this process, an operator, or a system that is short of memory.
  bool was_killed() const { return was_killed_; }

  // Whether it was stopped by a signal, and so works no more. Does not wait.
  bool IsStopped() const;

 private:
  Channel channel_;
  pid_t pid_ = 0;  // 0: there is none, or it was reaped.
  std::string end_ = "not started";
  bool was_killed_ = false;
};

// Decides when to restart a worker that ended. After too many restarts in a short time it rests.
class RestartPolicy {
 public:
  struct Limits {
    int restarts = 5;  // After this many within the window there is a rest, and no history.
    int64_t window_ns = 60'000'000'000;
    int64_t rest_ns = 300'000'000'000;
    int64_t first_pause_ns = 100'000'000;  // Before the second one; twice as long each time.
    int64_t longest_pause_ns = 5'000'000'000;
  };

  explicit RestartPolicy(const Limits& limits) : limits_(limits) {}

  struct Pause {
    int64_t ns = 0;
    bool is_rest = false;
    friend bool operator==(const Pause&, const Pause&) = default;
  };

  // Counts a restart, and returns the pause before it.
  Pause Next(int64_t now_ns) {
    while (!restarts_ns_.empty() && now_ns - restarts_ns_.front() >= limits_.window_ns) {
      restarts_ns_.pop_front();
    }
    const auto recent = static_cast<int>(restarts_ns_.size());
    if (recent >= limits_.restarts) {
      Forget();
      return {.ns = limits_.rest_ns, .is_rest = true};
    }
    restarts_ns_.push_back(now_ns);
    if (recent == 0) return {};
    int64_t pause_ns = limits_.first_pause_ns;
    for (int i = 1; i < recent && pause_ns < limits_.longest_pause_ns; ++i) pause_ns *= 2;
    return {.ns = std::min(pause_ns, limits_.longest_pause_ns)};
  }

  // As if the worker had never ended.
  void Forget() { restarts_ns_.clear(); }

  int64_t rest_ns() const { return limits_.rest_ns; }

 private:
  const Limits limits_;
  std::deque<int64_t> restarts_ns_;
};

// Runs kernels of the host in a worker, which is started with the first launch and again after it
// was lost. What is not in shared memory is copied there for a launch.
class ProcessLauncher final : public Launcher {
 public:
  struct Options {
    WorkerProgram program;
    uint64_t catalog = 0;  // CatalogFingerprint of the kind of device.
    // A launch may take this many times its predicted time, but at least watchdog_least: the
    // processors may be busy with others.
    double watchdog_factor = 20;
    absl::Duration watchdog_least = absl::Minutes(1);
    absl::Duration start_timeout = absl::Seconds(60);
  };

  // Borrows the memory. Calls of Start, Launch and Cool come from one thread, with which the worker
  // ends.
  ProcessLauncher(Options options, SharedMemory& memory);
  ~ProcessLauncher() override;

  // Starts a worker where there is none. A worker that was lost has a successor at once, or, where
  // others were lost shortly before, after a pause of up to a second.
  // Errors: why there is none: FailedPrecondition, Unavailable, DeadlineExceeded.
  absl::Status Start();
  // Replaces the worker. Errors: as Start.
  absl::Status Restart();

  absl::Status Launch(const LaunchTask& task) override;
  void Cool() override;

  // The flag that ends the launch that runs. Set by any thread.
  std::atomic<bool>& abort() { return control_.is_aborted; }

  // Whether the worker died of the last launch, which is Aborted: it crashed, or gave no answer in
  // time. One that a signal from outside stopped or killed did not.
  bool died_of_launch() const { return died_of_launch_; }

  // What the worker said of itself when it started.
  const Hello& hello() const { return hello_; }

  // Threads: any.
  pid_t pid() const { return pid_; }  // 0: there is none.
  int64_t restarts() const { return restarts_; }

 private:
  class Passed;

  absl::Status Greet();
  absl::StatusOr<Result> Ask(LaunchRequest& request, int64_t spin_ns, int64_t most_ns);
  absl::StatusOr<Result> Await(uint64_t id, int64_t spin_ns, int64_t most_ns);
  std::string End();
  std::string Lose(const std::string& reason);
  std::byte* TakeScratch(int64_t bytes);

  const Options options_;
  const SteadyClock clock_;
  SharedMemory& memory_;
  LaunchControl& control_;
  WorkerProcess process_;
  bool was_started_ = false;
  bool is_lost_ = false;  // As the log says, until there is a worker again.
  bool died_of_launch_ = false;
  Hello hello_;
  uint64_t last_id_ = 0;
  RestartPolicy restart_policy_;
  std::atomic<pid_t> pid_ = 0;
  std::atomic<int64_t> restarts_ = 0;
  std::byte* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
};

}  // namespace gemmd
