// SPDX-License-Identifier: Apache-2.0
//
// A device computed by a worker process: a GPU, `cpu` or a simulator. Requests to the worker are
// errands (errand.h), several at once: while it computes one job, operands of the next are copied
// to where the worker reads them, and the previous result from where it wrote it. The device's own
// thread begins errands, takes answers and watches timeouts; other threads copy large matrices, and
// the submitting thread sends jobs of up to 512 KiB itself. A worker that exits, loses its GPU or
// does not answer in time is killed and replaced. Running jobs end with Aborted.
//
// A GPU's other jobs then end with Unavailable, and its blocks are lost. After too many restarts it
// pauses before the next one. A device of the host has no blocks: its other jobs wait for the next
// worker, which starts within a second.
#pragma once

#include <array>
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
#include "server/crossing/protocol.h"
#include "server/device/device.h"
#include "server/device/errand.h"
#include "server/device/held_bytes.h"
#include "server/device/large_job.h"
#include "server/device/launch_errand.h"
#include "server/device/staging_area.h"
#include "server/device/worker_memory.h"
#include "server/device/worker_process.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"
#include "server/system/resources.h"

namespace gemmd {

struct WorkerDeviceOptions {
  WorkerProgram program;  // Without device and kind_arguments.
  // Its kind and, of a simulator, its chip; a GPU tells its chip itself.
  Target target = {.kind = DeviceKind::kCuda};
  // Devices of the host only: HostSide's.
  int threads = 0;
  SharedMemory* shared = nullptr;

  // GPUs only, as far as the limits of time.
  int ordinal = 0;
  int64_t memory_limit_bytes = 0;  // See WorkerOptions.
  int64_t tensor_limit_bytes = 0;  // See WorkerOptions.
  // The size of the staging area. Two thirds are for operands and results of running jobs; larger
  // jobs go through it in parts, and jobs larger than the GPU's memory in panels.
  int64_t staging_bytes = int64_t{768} << 20;
  absl::Duration canary_timeout = absl::Seconds(10);
  // The interval of canaries, which run between two jobs. A canary takes less than a millisecond,
  // so one a minute costs nothing.
  absl::Duration canary_interval = absl::Minutes(1);

  bool poisons_freed = false;  // Memory of the host: server/device/held_bytes.h.
  int copy_threads = CopyThreads::DefaultThreads();
  absl::Duration start_timeout = absl::Seconds(60);  // Until the worker has opened its device.
  // A job may take this many times its predicted time, but at least watchdog_min, and at most
  // watchdog_max, so that an overlong prediction does not keep a dead worker.
  double watchdog_factor = 10;
  absl::Duration watchdog_min = absl::Seconds(2);
  absl::Duration watchdog_max = absl::Minutes(5);
  // How long a worker may take to end an aborted job.
  absl::Duration time_to_abort = absl::Seconds(1);
  RestartPolicy::Limits restarts;
  // Answers to the jobs of a lost worker wait this long for its exit status, to include it.
  absl::Duration time_to_tell = absl::Milliseconds(50);

  // Those of `cpu` or a simulator. Borrows `shared`.
  static WorkerDeviceOptions OfHost(const Target& target, int threads, SharedMemory& shared);
};

class WorkerDevice final : public Device {
 public:
  // Starts the worker asynchronously.
  explicit WorkerDevice(WorkerDeviceOptions options);
  // Finishes submitted jobs, and ends the worker.
  ~WorkerDevice() override;

  // Errors: NotFound if there is no such GPU, FailedPrecondition if there is no worker, and others.
  absl::Status WaitUntilStarted() override ABSL_LOCKS_EXCLUDED(mutex_);

  const DeviceInfo& info() const override { return info_; }
  const DeviceProfile& profile() const override { return profile_; }
  absl::Status CheckSize(const Problem& problem) const override;
  int depth() const override { return is_host() ? kHostDepth : kDepth; }
  DeviceMemory* memory() override { return is_host() ? nullptr : &memory_; }
  void Submit(const Job& job, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort(JobId id) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status readiness() const override ABSL_LOCKS_EXCLUDED(mutex_);
  DeviceCondition condition() const override ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t worker_memory_bytes() const override { return OwnResidentBytes(worker_pid()); }
  absl::Status RestartWorker() override ABSL_LOCKS_EXCLUDED(mutex_);
  void WatchReadiness(Listener listener) override ABSL_LOCKS_EXCLUDED(listener_mutex_, mutex_);

  // The process id of the worker; 0 if there is none. Threads: any.
  pid_t worker_pid() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Checked;
  enum class Event { kRecord, kWoken, kTime };
  using Errands = std::vector<std::unique_ptr<Errand>>;

  // Max concurrent jobs at the worker, and max errands of blocks in addition.
  static constexpr int kDepth = 24;
  // A worker of the host computes one job while it has the next.
  static constexpr int kHostDepth = 2;
  static constexpr int kMemoryErrands = static_cast<int>(kMaxInFlight) - kDepth;

  bool is_host() const { return host_ != nullptr; }

  // Large jobs.
  absl::Status CheckStaged(int64_t bytes) const;
  absl::Status Fits(const Problem& problem, const JobPlaces& places, const Kernel* kernel,
                    int64_t max_bytes) const;
  absl::StatusOr<PanelPlan> PlanPanels(const Job& job, int64_t left_bytes) const;
  bool SubmitPaneled(const Job& job, Done& done, absl::Status& size) ABSL_LOCKS_EXCLUDED(mutex_);
  PaneledJob::Calls PanelCalls();
  bool SubmitStreamed(const Job& job, Done& done) ABSL_LOCKS_EXCLUDED(mutex_);
  void StartStreamed() ABSL_LOCKS_EXCLUDED(mutex_);

  // Life cycle of errands.
  std::unique_ptr<Errand> MakeJobErrand(const Job& job, Done done);
  void Give(Errands errands) ABSL_LOCKS_EXCLUDED(mutex_);
  ErrandQueue::Room TakeRoom(Errand& errand) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginNext() ABSL_LOCKS_EXCLUDED(mutex_);
  std::unique_ptr<Errand> TakeNext() ABSL_LOCKS_EXCLUDED(mutex_);
  void Begin(std::unique_ptr<Errand> errand) ABSL_LOCKS_EXCLUDED(mutex_);
  void BeginSmall(std::unique_ptr<Errand> errand) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginLarge(std::unique_ptr<Errand> errand) ABSL_LOCKS_EXCLUDED(mutex_);
  Copies CopiesIn(Errand& errand) const;
  void CopyHere(Errand& errand) ABSL_LOCKS_EXCLUDED(mutex_);
  void FreeSlot(const Errand& errand) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnCopiedIn(Errand* errand, const absl::Status& checked) ABSL_LOCKS_EXCLUDED(mutex_);
  void Send(std::unique_ptr<Errand> errand) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(std::unique_ptr<Errand> errand, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void RefuseWaiting() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndAborted() ABSL_LOCKS_EXCLUDED(mutex_);
  bool WasStarted(const Errand& errand) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellAborted(const Errand& errand) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendAgain() ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsIdle() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsFinished() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Answers.
  absl::Status TakeResults() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TakeAnswer(const Result& result) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t SpinAfter(const Errand& errand) const;
  absl::Status CheckTimes(const Errand& errand, const Result& result) const;
  void Finish(std::unique_ptr<Errand> errand, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishLarge(std::unique_ptr<Errand> errand, absl::Span<const std::byte> written,
                   Copies copies) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckTime() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Duration LongestRun(int64_t predicted_ns) const;
  std::unique_ptr<const Job> OnlyStarted() const ABSL_LOCKS_EXCLUDED(mutex_);
  void EndLost(std::string_view reason, bool keeps_waiting) ABSL_LOCKS_EXCLUDED(mutex_);

  // Life cycle of workers.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Serve() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Step() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Restart(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status StartWorker() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Describe(const Hello& hello);
  absl::Status Measure() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckCanary() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckCanaryIfDue() ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsRestartDue() ABSL_LOCKS_EXCLUDED(mutex_);
  bool TakeRestartRequest() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndWorker(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waiting. While the device is not ready, new jobs are refused.
  Event WaitForEvent(int64_t until_ns);
  absl::Status WaitForWorker(int64_t until_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Pause(int64_t pause_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  bool stopping() const ABSL_LOCKS_EXCLUDED(mutex_);
  void SetReadiness(absl::Status new_readiness) ABSL_LOCKS_EXCLUDED(listener_mutex_, mutex_);

  // Constant once started.
  const WorkerDeviceOptions options_;
  const SteadyClock clock_;
  const ResultStamps stamps_;
  const std::shared_ptr<const Waker> waker_ = std::make_shared<Waker>();
  const std::unique_ptr<HostSide> host_;  // Null for a GPU.
  DeviceInfo info_;
  DeviceProfile profile_;
  std::shared_ptr<StagingArea> staging_;
  WorkerMemory memory_;

  // Held while the readiness changes and is reported; acquired before mutex_.
  mutable Mutex listener_mutex_;
  Listener listener_ ABSL_GUARDED_BY(listener_mutex_);

  mutable Mutex mutex_;
  absl::Status readiness_ ABSL_GUARDED_BY(mutex_) = absl::UnavailableError("starting");
  std::atomic<bool> is_ready_ = false;  // Whether readiness is OK; read for each incoming product.
  std::optional<absl::Status> started_ ABSL_GUARDED_BY(mutex_);
  bool is_up_ ABSL_GUARDED_BY(mutex_) = false;  // There is a worker that takes errands.
  ErrandQueue queue_ ABSL_GUARDED_BY(mutex_);
  Errands aborted_ ABSL_GUARDED_BY(mutex_);  // Aborted while waiting.
  // By slot: errands whose operands are being copied, and those at the worker.
  std::array<std::unique_ptr<Errand>, kMaxInFlight> copied_ ABSL_GUARDED_BY(mutex_);
  std::array<std::unique_ptr<Errand>, kMaxInFlight> sent_ ABSL_GUARDED_BY(mutex_);
  std::array<bool, kMaxInFlight> is_slot_taken_ ABSL_GUARDED_BY(mutex_) = {};
  int jobs_under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  int memory_under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  // Jobs that go through the staging area in parts: waiting, and in progress.
  std::deque<std::shared_ptr<StreamedJob>> streams_waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<StreamedJob>> streams_ ABSL_GUARDED_BY(mutex_);
  // Jobs computed in panels, which are jobs and streams themselves.
  std::vector<std::shared_ptr<PaneledJob>> paneled_ ABSL_GUARDED_BY(mutex_);
  int finishing_ ABSL_GUARDED_BY(mutex_) = 0;  // Errands whose results are being copied.
  Errands false_ ABSL_GUARDED_BY(mutex_);      // Answered OK without a result.
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_restart_asked_ ABSL_GUARDED_BY(mutex_) = false;
  // While a canary waits or runs, all errands wait.
  bool is_checking_ ABSL_GUARDED_BY(mutex_) = false;
  DeviceCondition condition_ ABSL_GUARDED_BY(mutex_);
  // Owned by the device's thread; submitting threads may send through its channel.
  WorkerProcess worker_;

  // Written only by the device's thread.
  mutable std::atomic<int64_t> turn_ns_ = clock_.NowNs();

  // Owned by the device's thread.
  bool is_measured_ = false;
  // The oldest errand at the worker, and since when it is the oldest.
  uint64_t oldest_id_ = 0;
  int64_t oldest_since_ns_ = 0;
  int64_t last_answer_ns_ = 0;
  SpinTime spin_{options_.program.spin_ns};
  int64_t spin_until_ns_ = 0;
  int64_t next_canary_ns_ = 0;

  // Memory for results that do not fit the staging area.
  WarmMemory results_{WarmMemory::kKeptBytes, options_.poisons_freed};

  std::thread thread_;
  // The last member, because its work uses the others.
  std::unique_ptr<CopyThreads> copy_threads_;
};

}  // namespace gemmd
