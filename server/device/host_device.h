// SPDX-License-Identifier: Apache-2.0
//
// The devices of the host: `cpu` runs the rows of the libraries, `sim:<chip>` those of the
// simulator. Each has its own thread, which prepares one job after the other, and a worker process,
// in which kernels run on several threads. A crash of a kernel or library ends only the running
// job; the next job gets another worker. Operands are read in place from shared memory, or
// assembled there first.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/crossing/launcher.h"
#include "server/crossing/protocol.h"
#include "server/crossing/shared_memory.h"
#include "server/device/device.h"
#include "server/device/held_bytes.h"
#include "server/device/operands.h"
#include "server/device/worker_process.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

// Runs host kernels in a worker process, which is started with the first launch and restarted after
// a loss. Matrices outside shared memory are copied there for a launch.
class ProcessLauncher final : public Launcher {
 public:
  struct Options {
    WorkerProgram program;  // Without kind_arguments.
    uint64_t catalog = 0;   // CatalogFingerprint of the kind of device.
    int threads = 1;
    bool poisons_freed = false;
    // A launch may take this many times its predicted time, but at least watchdog_min, because the
    // processors may be busy.
    double watchdog_factor = 20;
    absl::Duration watchdog_min = absl::Minutes(1);
  };

  // Borrows the memory. Call Start, Launch and Cool from one thread; the worker ends with that
  // thread.
  ProcessLauncher(Options options, SharedMemory& memory);
  ~ProcessLauncher() override;

  // Starts a worker if there is none. A lost worker is replaced at once or, after recent losses,
  // after a pause of up to a second. Errors: FailedPrecondition, Unavailable, DeadlineExceeded.
  absl::Status Start();
  // Replaces the worker. Errors: as Start.
  absl::Status Restart();

  // Makes the worker measure the device; returns the numbers of its profile (kernels/host_rates.h).
  // Errors: those of Start; Unavailable if the worker does not return them.
  absl::StatusOr<std::vector<double>> Measure();

  absl::Status Launch(const LaunchTask& task) override;
  void Cool() override;

  // Sets whether the running launch, or else the next one, must end. Threads: any.
  void SetAborted(bool is_aborted) ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether the last launch (which is Aborted) crashed the worker or timed out. False if an
  // external signal stopped or killed the worker.
  bool died_of_launch() const { return died_of_launch_; }

  // The worker's greeting at its start.
  const Hello& hello() const { return hello_; }

  // Threads: any.
  pid_t pid() const ABSL_LOCKS_EXCLUDED(mutex_);  // 0: none.
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
  bool is_lost_ = false;  // A loss was logged, and there is no worker yet.
  bool died_of_launch_ = false;
  Hello hello_;
  uint64_t last_id_ = 0;
  int64_t spin_until_ns_ = 0;
  std::byte* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
};

// Final: its thread may use the device until the destructor joins it, so no derived destructor may
// run before.
class HostDevice final : public Device {
 public:
  // Starts the thread and measures the rates of the target's kernels: HostTarget() makes `cpu`, a
  // simulator's target `sim:<chip>`. `threads`: computing threads; 0: every core that this process
  // may use. `poisons_freed`: see server/device/held_bytes.h. Kernels run in a worker process of
  // `program`; without a program, on the device's own thread.
  HostDevice(const Target& target, int threads, bool poisons_freed = false,
             const WorkerProgram* program = nullptr);

  // Finishes submitted jobs.
  ~HostDevice() override;

  // Errors: those of ProcessLauncher::Measure.
  absl::Status WaitUntilStarted() override { return started_; }

  const DeviceInfo& info() const override { return info_; }
  const DeviceProfile& profile() const override { return profile_; }
  DeviceCondition condition() const override;
  int64_t worker_memory_bytes() const override;
  // The worker is replaced after the running job.
  absl::Status RestartWorker() override ABSL_LOCKS_EXCLUDED(mutex_);
  // The process id of the worker; 0 if there is none. Threads: any.
  pid_t worker_pid() const { return process_ == nullptr ? 0 : process_->pid(); }
  void Submit(const Job& job, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  // A waiting job is answered in its turn, without work.
  void Abort(JobId id) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class TakenForms;
  struct Pending {
    Job job;
    Done done;
    int64_t submitted_ns = 0;
    bool is_aborted = false;
  };
  void SetAborted(bool is_aborted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Measure(const Target& target);
  void Run(const Target& target) ABSL_LOCKS_EXCLUDED(mutex_);
  bool TakeNext(Pending& next) ABSL_LOCKS_EXCLUDED(mutex_);
  JobOutcome Execute(const Pending& pending);
  absl::StatusOr<GemmArgs> Prepare(const Job& job, Gathering& gathering, HeldBytes& d);
  absl::Status Launch(const Job& job, const TakenForms& forms, GemmArgs& args);
  absl::StatusOr<std::byte*> PlaceOutput(const Job& job, HeldBytes& d);

  // Constant after construction.
  const SteadyClock clock_;
  DeviceInfo info_;
  std::string no_memory_to_join_;  // The message of an error.
  SharedMemory* const shared_;     // Null if kernels run in this process.
  WarmMemory memory_;
  DeviceProfile profile_;
  absl::Status started_;

  Mutex mutex_;
  std::list<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  std::list<Pending> spare_ ABSL_GUARDED_BY(mutex_);  // Reusable list entries.
  JobId running_id_ ABSL_GUARDED_BY(mutex_) = 0;      // 0: none, or one that is never aborted.
  bool measured_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  bool is_restart_asked_ ABSL_GUARDED_BY(mutex_) = false;

  // Ends the running job.
  std::atomic<bool> abort_ = false;

  // Used by the device's thread.
  std::unique_ptr<Launcher> launcher_;
  ProcessLauncher* process_ = nullptr;  // The same object, if kernels run in a worker process.

  std::thread thread_;
};

}  // namespace gemmd
