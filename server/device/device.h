// SPDX-License-Identifier: Apache-2.0
//
// The seam between the service and what computes: submit a job, be told when it is done.
//
// A device runs its jobs in the order of submission, one after the other or, where it says so, some
// beside each other. It knows nothing of queues, deadlines or gRPC: the scheduler hands it as many
// jobs as it says.
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
  std::string description;  // For people: the processor's or the GPU's name.
  // For a simulator: "verified" against recordings of the chip, or "modelled" after publications.
  std::string arithmetic;
  int threads = 0;
  int64_t memory_bytes = 0;
  std::string chip;  // "sm_90"; empty for the CPU.

  // For a GPU only.
  int multiprocessors = 0;
  int64_t memory_limit_bytes = 0;  // What products may use of it.
  int64_t clock_khz = 0;           // The highest clock of the multiprocessors.
  int64_t memory_clock_khz = 0;
  std::string driver;   // The latest CUDA that its driver knows: "13.0".
  std::string runtime;  // The CUDA that runs: "13.0".
  std::string pci_bus_id;
  // Whether its worker was to give up rights; by what it did: "landlock 7, seccomp"; and what the
  // system lacked for more.
  bool is_confined = false;
  std::string confinement;
  std::string unconfined;
};

// What has become of a device since it was made, and what it holds now.
struct DeviceCondition {
  int64_t worker_restarts = 0;
  int64_t canaries_passed = 0;  // Its own canaries, run whenever its worker starts.
  int64_t canaries_failed = 0;
  int64_t staging_bytes = 0;  // Memory of the host through which operands go to it.
  int64_t staging_used_bytes = 0;
  // Copies of resident tensors in memory of its own: their bytes now, and since the start how often
  // one was there when it was needed, had to be made, or was given up for another one.
  int64_t tensor_bytes = 0;
  int64_t tensor_hits = 0;
  int64_t tensors_brought = 0;
  int64_t tensors_evicted = 0;
  int64_t tensors_written_back = 0;  // To memory of the host, to be given up then.
  // When the device's own thread last looked around, which it does at least ten times a second but
  // while it copies or answers; 0 where it has none that does.
  int64_t thread_turn_ns = 0;
};

// Records what a device and its kernels did wrong: false answers, and products that ended its
// worker process. Threads: any; takes no lock while there is nothing.
class DeviceTrust {
 public:
  // A kernel gave a wrong answer: it is quarantined. The second one takes the device out of
  // service. Returns whether this one did.
  bool AddWrongAnswer(const Kernel& kernel) ABSL_LOCKS_EXCLUDED(mutex_);

  // The worker died of a product. Returns whether its kernel is refused from now on for products of
  // the same shape class: after the second time, until ForgetLosses.
  bool AddLoss(const Kernel& kernel, const Problem& problem) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetLosses() ABSL_LOCKS_EXCLUDED(mutex_);

  // OK, or FailedPrecondition if workers of the device of this name died of such products.
  absl::Status CheckLosses(const Kernel& kernel, const Problem& problem,
                           std::string_view device) const ABSL_LOCKS_EXCLUDED(mutex_);

  // The kernels that the device of this name is not given for the problem.
  std::vector<DistrustedKernel> distrusted(const Problem& problem, std::string_view device) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // OK, or why the device serves no longer.
  absl::Status status() const;

  int64_t wrong_answers() const { return wrong_answers_; }

  static constexpr int64_t kMaxWrongAnswers = 1;
  static constexpr int kMaxLosses = 1;

 private:
  std::atomic<int64_t> wrong_answers_ = 0;
  std::atomic<bool> has_losses_ = false;
  mutable Mutex mutex_;
  std::vector<const Kernel*> quarantined_ ABSL_GUARDED_BY(mutex_);
  // How often. At most one entry for each row of the catalogue and each class.
  std::map<std::pair<const Kernel*, ShapeClass>, int> losses_ ABSL_GUARDED_BY(mutex_);
};

class Device {
 public:
  using Done = absl::AnyInvocable<void(JobOutcome) &&>;
  using Listener = std::function<void(const absl::Status& readiness)>;

  virtual ~Device() = default;

  // Waits until the device is ready for the first time; nothing below may be called before.
  // Errors: why it never will be: NotFound where the machine has no such device, others where it
  // cannot be used. The device then stays as it is.
  virtual absl::Status WaitUntilStarted() { return absl::OkStatus(); }

  // Constant from then on.
  virtual const DeviceInfo& info() const = 0;
  virtual const DeviceProfile& profile() const = 0;

  // OK where a product is not too large for the device, whatever else it does; otherwise
  // ResourceExhausted, with the limit. Threads: any.
  virtual absl::Status CheckSize(const Problem& /*problem*/) const { return absl::OkStatus(); }

  // How many jobs it is to be given before the first of them is done, so that one is copied while
  // another is computed. They may end in any order. Constant.
  virtual int depth() const { return 1; }

  // Memory in which tensors stay; null where they stay in memory of the host, which the device
  // reads and writes. The device owns it.
  virtual DeviceMemory* memory() { return nullptr; }

  // Queues the job without waiting; `done` is called exactly once, from the device's own thread.
  // Outcome: InvalidArgument where the bytes of the operands are wrong (CheckOperands); Cancelled
  // where it was aborted, ResourceExhausted where memory ran out, Internal where the kernel failed;
  // Unavailable where the device was lost before the job started, Aborted while it ran;
  // FailedPrecondition where its workers died of such jobs (DeviceTrust). Threads: any.
  virtual void Submit(const Job& job, Done done) = 0;

  // Ends the job early, whether it waits or runs: its outcome is Cancelled, or what it would have
  // been where it was nearly done. Does nothing where there is no such job. Threads: any.
  virtual void Abort(JobId /*id*/) {}

  // OK where the device can be given jobs; otherwise Unavailable, with the reason. Threads: any.
  virtual absl::Status readiness() const { return absl::OkStatus(); }

  // Threads: any.
  virtual DeviceCondition condition() const { return {}; }

  // The memory of the host that a worker process of the device has for itself. Threads: any.
  virtual int64_t worker_memory_bytes() const { return 0; }

  // Has the device's worker process replaced, however often that was done before, and forgets which
  // kernels workers died of; does not wait for the new one. Errors: Unimplemented where there is
  // none; FailedPrecondition where the device never started. Threads: any.
  virtual absl::Status RestartWorker() {
    return absl::UnimplementedError("device: " + info().name + " has no worker process");
  }

  // Calls the listener with the readiness of now, later with every change of it, from the device's
  // own thread; never two calls at once. Null ends that. Threads: one at a time.
  virtual void WatchReadiness(Listener listener) {
    if (listener) listener(readiness());
  }

  // Threads: any.
  virtual DeviceTrust& trust() { return trust_; }

 protected:
  // OK, or FailedPrecondition where two workers of the device died of such products.
  absl::Status CheckLosses(const Job& job) const {
    return trust_.CheckLosses(*job.kernel, job.problem, info().name);
  }
  // The worker died of a product. Logs it if such products are refused from now on.
  void AddLoss(const Kernel& kernel, const Problem& problem);

 private:
  DeviceTrust trust_;
};

// A device as the service sees it. Constant while the server runs.
struct ServedDevice {
  Device* device = nullptr;
  absl::Status canary;  // What became of the server's own, at the start.

  // OK where the device can be given products now; otherwise Unavailable, with its name.
  absl::Status readiness() const;

  // The kernels that it must not be given for the problem.
  std::vector<DistrustedKernel> distrusted(const Problem& problem) const {
    return device->trust().distrusted(problem, device->info().name);
  }
};

// Runs small products of exact integers through the device, one per accumulation type that its
// kernels have, and compares every bit with sums made here in 64-bit integers: a device that gets
// one wrong is not ready.
//
// Errors: DataLoss for a wrong product, DeadlineExceeded where the device does not answer in time
// (the device must then not be destroyed before it has answered), otherwise the device's own
// status. Threads: blocks; nothing else may use the device meanwhile.
absl::Status RunCanary(Device& device, absl::Duration timeout);

// Such a product for one kernel of a device, to be submitted by whoever shares the device.
struct CanaryProduct {
  Job job;  // Borrows the rest.
  std::string a;
  std::string b;
  SourcePieces pieces;

  // Errors: DataLoss where D is wrong.
  absl::Status Check(absl::Span<const std::byte> d) const;
};

// Errors: Unimplemented where the kernel takes no such product.
absl::StatusOr<std::unique_ptr<CanaryProduct>> MakeCanary(const Kernel& kernel);

}  // namespace gemmd
