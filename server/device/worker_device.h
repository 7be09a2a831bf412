// SPDX-License-Identifier: Apache-2.0
//
// A GPU as a device: its worker process, kept running.
//
// A thread of the device's own speaks with the worker: it copies operands into the staging area and
// results out of it, one job at a time, and watches the time. (A small job that meets an idle
// worker is handed over by the thread that submits it.) A worker that ends, that loses its GPU or
// that does not answer in time is killed and started again; what ran is answered Aborted, what
// waits Unavailable. After too many restarts the device rests before the next one.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/crossing/job_layout.h"
#include "server/crossing/protocol.h"
#include "server/crossing/staging.h"
#include "server/device/device.h"
#include "server/device/restart_policy.h"
#include "server/device/result_stamps.h"
#include "server/device/worker_process.h"
#include "server/system/clock.h"
#include "server/system/file_descriptor.h"
#include "server/system/mutex.h"

namespace gemmd {

struct WorkerDeviceOptions {
  WorkerCommand command;
  // Operands and result of one job; a larger job is ResourceExhausted.
  int64_t staging_bytes = int64_t{256} << 20;
  absl::Duration start_timeout = absl::Seconds(60);  // Until the worker has its GPU.
  absl::Duration canary_timeout = absl::Seconds(10);
  // A job may take this many times its predicted time, but at most watchdog_most, so that a
  // prediction that is far too long keeps no dead worker, and at least watchdog_least.
  double watchdog_factor = 10;
  absl::Duration watchdog_least = absl::Seconds(2);
  absl::Duration watchdog_most = absl::Minutes(5);
  RestartPolicy::Limits restarts;
  // After this time without one, the worker is given the canary again, between two jobs.
  absl::Duration canary_interval = absl::Minutes(1);
};

class WorkerDevice final : public Device {
 public:
  // Begins to start the worker.
  explicit WorkerDevice(WorkerDeviceOptions options);
  // Finishes what was submitted, and ends the worker.
  ~WorkerDevice() override;

  // Errors: NotFound where there is no such GPU, FailedPrecondition where there is no worker, and
  // others.
  absl::Status WaitUntilStarted() override ABSL_LOCKS_EXCLUDED(mutex_);

  const DeviceInfo& info() const override { return info_; }
  const DeviceProfile& profile() const override { return profile_; }
  absl::Status CheckSize(const Problem& problem) const override;
  void Submit(const Job& job, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort(JobId id) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status readiness() const override ABSL_LOCKS_EXCLUDED(mutex_);
  DeviceCondition condition() const override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RestartWorker() override ABSL_LOCKS_EXCLUDED(mutex_);
  void WatchReadiness(Listener listener) override ABSL_LOCKS_EXCLUDED(listener_mutex_, mutex_);

  // The process of the worker; 0 where there is none. Threads: any.
  pid_t worker_pid() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Checked;

  // A job that waits or that the worker has.
  struct Pending {
    Job job;
    Done done;
    JobLayout layout;
    absl::Status refusal;  // Where it cannot be done at all.
    int64_t submitted_ns = 0;
    uint64_t id = 0;  // This and what follows: set once the worker has the job.
    int64_t begun_ns = 0;
    int64_t sent_ns = 0;
    int64_t deadline_ns = 0;

    // Whether the thread that submits it may check it and hand it over.
    bool is_small() const;
  };
  enum class Event { kRecord, kWoken, kTime };

  // The life of jobs.
  absl::StatusOr<JobLayout> LayOut(const Problem& problem) const;
  std::unique_ptr<Pending> MakePending(const Job& job, Done done) const;
  void MakeCurrent(std::unique_ptr<Pending> pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration LongestRun(const Job& job) const;
  void HandOver(Pending& pending) const;
  void HandOverNext() ABSL_LOCKS_EXCLUDED(mutex_);
  Pending* TakeNext() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TakeResult() ABSL_LOCKS_EXCLUDED(mutex_);
  JobOutcome Finish(const Pending& pending, const Result& result) const;
  absl::Status CheckResult(const Pending& pending, const Result& result) const;
  absl::Status CheckTime() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Answer(Pending& pending, const absl::Status& status) const;
  void AnswerLost(std::string_view reason) ABSL_LOCKS_EXCLUDED(mutex_);
  void RefusePending() ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerAborted() ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsAborted(const Pending& pending) const;
  bool CopyInChunks(const Pending& pending, const JobRange& range, const Source& from) const;
  absl::Status TakeOutput(const Pending& pending, HeldBytes& d) const;
  Pending* current() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The life of workers.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Serve() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Step() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Restart(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status StartWorker() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Greet() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Describe(const Hello& hello);
  absl::Status Measure() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckCanary() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckCanaryIfDue() ABSL_LOCKS_EXCLUDED(mutex_);
  bool TakeRestartRequest() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndWorker(int64_t patience_ns) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waiting. While the device is not ready, jobs that come in meanwhile are refused.
  Event WaitForEvent(int64_t until_ns) const;
  Event Poll(int64_t wait_ns) const;
  absl::StatusOr<Packet> AwaitPacket(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  bool AwaitEnd(int64_t patience_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Pause(int64_t pause_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  void Wake() const;
  bool stopping() const ABSL_LOCKS_EXCLUDED(mutex_);
  void SetReadiness(absl::Status new_readiness) ABSL_LOCKS_EXCLUDED(listener_mutex_, mutex_);

  // Constant once started.
  const WorkerDeviceOptions options_;
  const SteadyClock clock_;
  const ResultStamps stamps_;
  DeviceInfo info_;
  DeviceProfile profile_;
  Staging staging_;
  FileDescriptor wake_;

  // Held while the readiness changes and is told; taken before mutex_.
  mutable Mutex listener_mutex_;
  Listener listener_ ABSL_GUARDED_BY(listener_mutex_);

  mutable Mutex mutex_;
  absl::Status readiness_ ABSL_GUARDED_BY(mutex_) = absl::UnavailableError("starting");
  std::optional<absl::Status> started_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<Pending>> pending_ ABSL_GUARDED_BY(mutex_);
  // The worker's job. What it points at belongs to the device's thread once it was handed over.
  std::unique_ptr<Pending> current_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Pending>> aborted_ ABSL_GUARDED_BY(mutex_);  // They waited.
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t abort_deadline_ns_ ABSL_GUARDED_BY(mutex_) = 0;  // Until the worker ends aborted_id_.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_restart_asked_ ABSL_GUARDED_BY(mutex_) = false;
  // While a canary has the worker between two jobs, all jobs wait.
  bool is_checking_ ABSL_GUARDED_BY(mutex_) = false;
  DeviceCondition condition_ ABSL_GUARDED_BY(mutex_);
  // The worker's job that nobody wants any more: the last one, by Pending::id.
  std::atomic<uint64_t> aborted_id_ = 0;
  // Changed by the device's thread alone, and then locked; its socket is used by any that hands
  // over.
  WorkerProcess process_;

  // Written by the device's thread alone.
  mutable std::atomic<int64_t> turn_ns_ = clock_.NowNs();

  // Owned by the device's thread.
  RestartPolicy restarts_;
  bool is_measured_ = false;
  int64_t spin_until_ns_ = 0;
  int64_t next_canary_ns_ = 0;
  std::string end_;  // How the last worker ended.

  std::thread thread_;
};

}  // namespace gemmd
