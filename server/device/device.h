// SPDX-License-Identifier: Apache-2.0
//
// The interface between the service and whatever computes: submit a job, get a callback when it is
// done. A device runs its jobs in the order of submission, one at a time or (see depth)
// overlapping. Devices are independent of queues, deadlines and gRPC: the scheduler submits at most
// depth() jobs at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/kernel.h"
#include "kernels/problem.h"
#include "kernels/select.h"
#include "server/device/job.h"
#include "server/system/mutex.h"

namespace gemmd {

struct DeviceInfo {
  std::string name;  // As requests name it: "cpu", "sim:sm_90", "cuda:0".
  DeviceKind kind = DeviceKind::kCpu;
  std::string description;  // The processor's or the GPU's name.
  // For a simulator: "verified" against recordings of the chip, or "modelled" after publications.
  std::string arithmetic;
  int threads = 0;
  int64_t memory_bytes = 0;
  std::string chip;  // "sm_90"; empty for the CPU.

  // GPUs only.
  int multiprocessors = 0;
  int64_t memory_limit_bytes = 0;  // The part of the memory that products may use.
  int64_t clock_khz = 0;           // The highest clock of the multiprocessors.
  int64_t memory_clock_khz = 0;
  std::string driver;   // The latest CUDA that its driver knows: "13.0".
  std::string runtime;  // The CUDA that runs: "13.0".
  std::string pci_bus_id;
  // Whether its worker should be confined; the means used: "landlock 7, seccomp"; and what the
  // system lacked.
  bool is_confined = false;
  std::string confinement;
  std::string unconfined;
};

// Counters of a device since its creation, and its current memory use.
struct DeviceCondition {
  int64_t worker_restarts = 0;
  int64_t canaries_passed = 0;  // Canaries passed; run whenever its worker starts.
  int64_t canaries_failed = 0;
  int64_t staging_bytes = 0;  // Host memory for transfers to the device.
  int64_t staging_used_bytes = 0;
  // Copies of resident tensors in the device's own memory: current bytes, and since the start how
  // often a copy was found, created, or evicted for another one.
  int64_t tensor_bytes = 0;
  int64_t tensor_hits = 0;
  int64_t tensors_brought = 0;
  int64_t tensors_evicted = 0;
  int64_t tensors_written_back = 0;  // Copies written to host memory before eviction.
  // When the device's own thread last ran its loop, which it does at least ten times a second
  // unless it copies or answers; 0 if there is no such thread.
  int64_t thread_turn_ns = 0;
};

// Records faults of a device and its kernels: wrong answers, and products that crashed its worker
// process. Threads: any; takes no lock while there are no faults.
class DeviceTrust {
 public:
  // A kernel gave a wrong answer: it is quarantined. The second wrong answer takes the device out
  // of service. Returns whether this call did.
  bool AddWrongAnswer(const Kernel& kernel) ABSL_LOCKS_EXCLUDED(mutex_);

  // A product crashed the worker. Returns whether its kernel is refused from now on for products of
  // the same shape class: after the second crash, until ForgetLosses.
  bool AddLoss(const Kernel& kernel, const Problem& problem) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetLosses() ABSL_LOCKS_EXCLUDED(mutex_);

  // OK, or FailedPrecondition if such products crashed workers of the named device.
  absl::Status CheckLosses(const Kernel& kernel, const Problem& problem,
                           std::string_view device) const ABSL_LOCKS_EXCLUDED(mutex_);

  // The kernels that the named device must not be given for the problem.
  std::vector<DistrustedKernel> distrusted(const Problem& problem, std::string_view device) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // OK, or why the device is out of service.
  absl::Status status() const;

  int64_t wrong_answers() const { return wrong_answers_; }

  static constexpr int64_t kMaxWrongAnswers = 1;
  static constexpr int kMaxLosses = 1;

 private:
  std::atomic<int64_t> wrong_answers_ = 0;
  std::atomic<bool> has_losses_ = false;
  mutable Mutex mutex_;
  std::vector<const Kernel*> quarantined_ ABSL_GUARDED_BY(mutex_);
  // Number of crashes. At most one entry per row of the catalogue and class.
  std::map<std::pair<const Kernel*, ShapeClass>, int> losses_ ABSL_GUARDED_BY(mutex_);
};

class Device {
 public:
  using Done = absl::AnyInvocable<void(JobOutcome) &&>;
  using Listener = std::function<void(const absl::Status& readiness)>;

  virtual ~Device() = default;

  // Waits until the device is ready for the first time; call before any function below. Errors:
  // NotFound if the machine has no such device, others if it cannot be used; the device will then
  // never be ready.
  virtual absl::Status WaitUntilStarted() { return absl::OkStatus(); }

  // Constant after WaitUntilStarted.
  virtual const DeviceInfo& info() const = 0;
  virtual const DeviceProfile& profile() const = 0;

  // OK if a product is not too large for the idle device; otherwise ResourceExhausted, with the
  // limit. Threads: any.
  virtual absl::Status CheckSize(const Problem& /*problem*/) const { return absl::OkStatus(); }

  // The max number of jobs to submit before the first is done, so that one is copied while another
  // is computed. They may end in any order. Constant.
  virtual int depth() const { return 1; }

  // The device's memory for resident tensors; null if the device uses them in host memory. Owned by
  // the device.
  virtual DeviceMemory* memory() { return nullptr; }

  // Queues the job without waiting; `done` is called exactly once, from the device's own thread.
  // Outcome: InvalidArgument if the operands' bytes are invalid (CheckOperands); Cancelled if
  // aborted; ResourceExhausted if memory ran out; Internal if the kernel failed; Unavailable if the
  // device was lost before the job started, Aborted if while it ran; FailedPrecondition if such
  // jobs crashed its workers (DeviceTrust). Threads: any.
  virtual void Submit(const Job& job, Done done) = 0;

  // Computes elements of a job that has ended again, where its tensors are; `order` lacks their
  // places. `done` is called exactly once, from any thread, possibly before this returns; the job's
  // tensors must live until then. Errors: Unimplemented if the device has no memory of its own;
  // FailedPrecondition if it no longer has a tensor; those of DeviceMemory. Threads: any.
  virtual void Recompute(const Job& job, DeviceMemory::Recomputation order,
                         DeviceMemory::RecomputeDone done);

  // Ends a waiting or running job early: its outcome is Cancelled, or its normal outcome if it was
  // nearly done. No effect if there is no such job. Threads: any.
  virtual void Abort(JobId /*id*/) {}

  // OK if the device accepts jobs; otherwise Unavailable, with the reason. Threads: any.
  virtual absl::Status readiness() const { return absl::OkStatus(); }

  // Threads: any.
  virtual DeviceCondition condition() const { return {}; }

  // Private host memory of the device's worker process. Threads: any.
  virtual int64_t worker_memory_bytes() const { return 0; }

  // Replaces the device's worker process, even after too many restarts, and forgets which kernels
  // crashed workers; does not wait for the new process. Errors: Unimplemented if there is no
  // worker; FailedPrecondition if the device never started. Threads: any.
  virtual absl::Status RestartWorker() {
    return absl::UnimplementedError("device: " + info().name + " has no worker process");
  }

  // Calls the listener with the current readiness, and later after every change, from the device's
  // own thread, never concurrently. Null stops that. Threads: one at a time.
  virtual void WatchReadiness(Listener listener) {
    if (listener) listener(readiness());
  }

  // Threads: any.
  virtual DeviceTrust& trust() { return trust_; }

 protected:
  // OK, or FailedPrecondition if such products crashed two workers of the device.
  absl::Status CheckLosses(const Job& job) const {
    return trust_.CheckLosses(*job.kernel, job.problem, info().name);
  }
  // A product crashed the worker. Logs if such products are refused from now on.
  void AddLoss(const Kernel& kernel, const Problem& problem);

 private:
  DeviceTrust trust_;
};

// A device as the service sees it. Constant while the server runs.
struct ServedDevice {
  Device* device = nullptr;
  absl::Status canary;  // The result of the server's canary at the start.

  // OK if the device accepts products now; otherwise Unavailable, with its name.
  absl::Status readiness() const;

  // The kernels that the device must not be given for the problem.
  std::vector<DistrustedKernel> distrusted(const Problem& problem) const {
    return device->trust().distrusted(problem, device->info().name);
  }
};

// Runs small products of exact integers through the device, one per accumulation type that its
// kernels have, and compares every bit with sums computed here in 64-bit integers: a device with a
// wrong result is not ready. Errors: DataLoss for a wrong product, DeadlineExceeded if the device
// does not answer in time (the device must then not be destroyed before it has answered), otherwise
// the device's own status. Threads: blocks; nothing else may use the device meanwhile.
absl::Status RunCanary(Device& device, absl::Duration timeout);

// A canary product for one kernel, to be submitted to a device that is in use.
struct CanaryProduct {
  Job job;  // Borrows the other members.
  std::string a;
  std::string b;
  SourcePieces pieces;

  // Errors: DataLoss if D is wrong.
  absl::Status Check(absl::Span<const std::byte> d) const;
};

// Errors: Unimplemented if the kernel does not support such a product.
absl::StatusOr<std::unique_ptr<CanaryProduct>> MakeCanary(const Kernel& kernel);

}  // namespace gemmd
