// SPDX-License-Identifier: Apache-2.0
//
// Runs kernels of the host in a worker process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/crossing/launcher.h"
#include "server/crossing/protocol.h"
#include "server/crossing/shared_memory.h"
#include "server/device/worker_process.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

// Runs kernels of the host in a worker, which is started with the first launch and again after it
// was lost. What is not in shared memory is copied there for a launch.
class ProcessLauncher final : public Launcher {
 public:
  struct Options {
    WorkerProgram program;  // But for its kind_arguments.
    uint64_t catalog = 0;   // CatalogFingerprint of the kind of device.
    int threads = 1;
    bool poisons_freed = false;
    // A launch may take this many times its predicted time, but at least watchdog_least: the
    // processors may be busy with others.
    double watchdog_factor = 20;
    absl::Duration watchdog_least = absl::Minutes(1);
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

  // Has the worker measure the device: the numbers of its profile (kernels/host_rates.h). Errors:
  // as Start; Unavailable where it does not tell them.
  absl::StatusOr<std::vector<double>> Measure();

  absl::Status Launch(const LaunchTask& task) override;
  void Cool() override;

  // Whether the launch that runs, or else the next one, is to end. Threads: any.
  void SetAborted(bool is_aborted) ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether the worker died of the last launch, which is Aborted: it crashed, or gave no answer in
  // time. One that a signal from outside stopped or killed did not.
  bool died_of_launch() const { return died_of_launch_; }

  // What the worker said of itself when it started.
  const Hello& hello() const { return hello_; }

  // Threads: any.
  pid_t pid() const ABSL_LOCKS_EXCLUDED(mutex_);  // 0: there is none.
  int64_t restarts() const { return worker_.restarts(); }

 private:
  class Passed;

  absl::StatusOr<std::vector<double>> TakeNumbers();
  absl::StatusOr<Result> Ask(LaunchRequest& request, int64_t spin_ns, absl::Duration most);
  absl::StatusOr<Result> Await(uint64_t id, int64_t spin_ns, absl::Duration most);
  absl::Status Wait(int64_t until_ns);
  std::string End();
  std::string Lose(const std::string& reason);
  std::byte* TakeScratch(int64_t bytes);

  const Options options_;
  const SteadyClock clock_;
  SharedMemory& memory_;
  mutable Mutex mutex_;  // WorkerProcess's.
  bool is_aborted_ ABSL_GUARDED_BY(mutex_) = false;
  WorkerProcess worker_;
  bool is_lost_ = false;  // As the log says, until there is a worker again.
  bool died_of_launch_ = false;
  Hello hello_;
  uint64_t last_id_ = 0;
  int64_t spin_until_ns_ = 0;
  std::byte* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
};

}  // namespace gemmd
