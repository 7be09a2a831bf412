// SPDX-License-Identifier: Apache-2.0
//
// The devices of the host: `cpu` runs the rows of the libraries, `sim:<chip>` those of the
// simulator. Each has one thread of its own, which prepares one job after the other, and a worker
// process, in which kernels run on the threads that they are given. What a kernel or a library does
// to its process ends no more than the job that runs; the next one has another worker.
//
// Operands are read where they lie in shared memory, or are put together there first.
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

// Runs kernels of the host in a worker, which is started with the first launch and again after it
// was lost. What is not in shared memory is copied there for a launch.
class ProcessLauncher final : public Launcher {
 public:
  struct Options {
    WorkerProgram program;  // But for its kind_arguments.
    uint64_t catalog = 0;   // CatalogFingerprint of the kind of device.
    int threads = 1;
    bool poisons_freed = false;
    // A launch may take this many times its predicted time, but at least watchdog_min: the
    // processors may be busy with others.
    double watchdog_factor = 20;
    absl::Duration watchdog_min = absl::Minutes(1);
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

// Final: its thread may call the device until the destructor has joined it, so there must be no
// destructor of a derived class before.
class HostDevice final : public Device {
 public:
  // Starts the thread and has the rates of the target's kernels measured: HostTarget() makes `cpu`,
  // a simulator's target `sim:<chip>`. `threads` computing threads; 0 takes every core that
  // this process may run on. `poisons_freed`: server/device/held_bytes.h.
  // Kernels run in a process of the program; without one, on the device's own thread.
  HostDevice(const Target& target, int threads, bool poisons_freed = false,
             const WorkerProgram* program = nullptr);

  // Finishes what was submitted.
  ~HostDevice() override;

  // Errors: those of ProcessLauncher::Measure.
  absl::Status WaitUntilStarted() override { return started_; }

  const DeviceInfo& info() const override { return info_; }
  const DeviceProfile& profile() const override { return profile_; }
  DeviceCondition condition() const override;
  int64_t worker_memory_bytes() const override;
  // The worker is replaced after the job that runs.
  absl::Status RestartWorker() override ABSL_LOCKS_EXCLUDED(mutex_);
  // The process of the worker; 0 where there is none now. Threads: any.
  pid_t worker_pid() const { return process_ == nullptr ? 0 : process_->pid(); }
  void Submit(const Job& job, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  // A job that waits is answered in its turn, without work.
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
  SharedMemory* const shared_;  // Null where kernels run here.
  WarmMemory memory_;
  DeviceProfile profile_;
  absl::Status started_;

  Mutex mutex_;
  std::list<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  std::list<Pending> spare_ ABSL_GUARDED_BY(mutex_);  // Entries of jobs that no longer wait.
  JobId running_id_ ABSL_GUARDED_BY(mutex_) = 0;      // 0: none, or one that is never aborted.
  bool measured_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  bool is_restart_asked_ ABSL_GUARDED_BY(mutex_) = false;

  // Ends the job that runs.
  std::atomic<bool> abort_ = false;

  // The device's thread uses it.
  std::unique_ptr<Launcher> launcher_;
  ProcessLauncher* process_ = nullptr;  // The same one, where kernels run in a process.

  std::thread thread_;
};

}  // namespace gemmd
