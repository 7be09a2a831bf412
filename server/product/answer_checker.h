// SPDX-License-Identifier: Apache-2.0
//
// Checks the results of jobs before they become answers. For a wrong result it records the
// incident, quarantines the kernel on its device, runs canaries of all the device's engines, and
// computes the product again elsewhere if the server's operator wants that.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/matrix/abort.h"
#include "server/device/device.h"
#include "server/product/check_queue.h"
#include "server/product/counts.h"
#include "server/product/product.h"
#include "server/product/scheduler.h"
#include "server/product/verification.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

class AnswerChecker {
 public:
  // Gets the product when its check has ended. The product's status is DataLoss if the result was
  // wrong, and Cancelled or DeadlineExceeded if the check was ended early.
  using Done = std::function<void(std::unique_ptr<Product>)>;

  // Borrows all arguments; `log` may be null. `chip_state` describes the state of a device's chip.
  AnswerChecker(const std::vector<ServedDevice>& devices, Scheduler& scheduler, Stats& stats,
                const Clock& clock, const VerifyOptions& options, IncidentLog* log,
                std::function<std::string(size_t device)> chip_state, Done done);
  // No check may be left. Ends canaries in progress.
  ~AnswerChecker();

  // Claims time for the check of a product, before the product is queued, and sets in the product
  // how long the check is predicted to take and to wait. Threads: any.
  void Claim(Product& product, int64_t predicted_ns);

  // Checks the result of a product that is OK. Calls `done` once, from another thread. The job's
  // operands and tensors live until then; the job says where they lie in host memory. Threads: any.
  void Check(std::unique_ptr<Product> product);

  // Ends checks early, waiting or running. Threads: any.
  void Cancel(absl::Span<const JobId> ids) { checks_.Cancel(ids); }
  // Ends all checks early, present and later ones. Threads: any.
  void Stop() {
    is_stopped_ = true;
    checks_.Stop();
  }

 private:
  struct Place {
    const ServedDevice* served = nullptr;
    const Kernel* kernel = nullptr;  // Null if there is no place.
  };

  // What is known of a sample before the device computes it.
  struct SampleOfD {
    verify::CheckResult passed;         // The result if all its elements are right.
    std::vector<std::byte> found = {};  // The elements of a D in host memory.
  };

  // Does the next slice of a check, until it returns that the check has ended; then it has taken
  // the product.
  using Step = absl::AnyInvocable<bool(std::unique_ptr<Product>& product, AbortFlag abort)>;

  void Post(std::unique_ptr<Product> product, Step step);
  // Lets the product's device compute a sample of D, and compares it with D. If it differs, or the
  // device cannot, the host decides.
  void RecomputeOnDevice(std::unique_ptr<Product> product, AbortFlag abort);
  void EndRecompute(std::unique_ptr<Product> product, const SampleOfD& sample,
                    const absl::StatusOr<DeviceMemory::Recomputed>& result);
  void BeginOnHost(std::unique_ptr<Product> product);
  void Begin(std::unique_ptr<Product> product);
  // The check of a product against its operands.
  class Verification;
  void EndVerified(std::unique_ptr<Product> product, const verify::CheckResult& check);
  void ComputeOnceMore(std::unique_ptr<Product> product);
  void Compare(std::unique_ptr<Product> product, AbortFlag abort);
  // Whether the element is right in the first of two results that differ.
  static absl::StatusOr<bool> IsElementRight(const Product& product,
                                             const verify::WrongElement& element, AbortFlag abort);
  void EndOk(std::unique_ptr<Product> product, const verify::CheckResult& check);
  // Ends the check without a verdict about the result.
  void EndNotVerified(std::unique_ptr<Product> product, std::string_view reason);
  void EndWith(std::unique_ptr<Product> product, absl::Status status);
  void End(std::unique_ptr<Product> product);
  void EndEarly(std::unique_ptr<Product> product, const absl::Status& status);
  // The result from `place` is wrong; `check` says where.
  void EndWrong(std::unique_ptr<Product> product, Place place, const verify::CheckResult& check);
  // Records the incident and returns its fields for the log.
  std::string Note(const Product& product, Place place, const verify::CheckResult& check,
                   bool took_out_device);
  // Copies what is to be kept of the product, and sets the incident's hashes.
  absl::StatusOr<std::shared_ptr<KeptProduct>> Keep(const Job& job, Incident& incident) const;
  void ComputeElsewhere(std::unique_ptr<Product> product, Place place);
  std::unique_ptr<Submission> SubmissionFor(const Product& product, Place place) const;

  Place EqualPlace(const Product& product) const;
  Place PlaceForRetry(const Product& product) const;
  bool CanRun(Place place, const Problem& problem) const;
  // Whether the caller's rules allow the device.
  static bool MayUse(const Product& product, const ServedDevice& served);
  void RunCanaries(const ServedDevice& served) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndCanary(const ServedDevice& served, const Kernel& kernel, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const std::vector<ServedDevice>& devices_;
  Scheduler& scheduler_;
  Stats& stats_;
  const Clock& clock_;
  const VerifyOptions options_;
  IncidentLog* const log_;
  const std::function<std::string(size_t device)> chip_state_;
  const Done done_;
  Mutex mutex_;
  std::atomic<bool> is_stopped_ = false;
  int canaries_ ABSL_GUARDED_BY(mutex_) = 0;  // In progress.
  // Answers are checked on threads of this queue, not on the devices' or gRPC's. They end before
  // all other members are destroyed.
  CheckQueue checks_;
};

}  // namespace gemmd
