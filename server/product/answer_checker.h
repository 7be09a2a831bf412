// SPDX-License-Identifier: Apache-2.0
//
// Checks the results of jobs before they become answers, and does what a wrong one asks for: notes
// the incident, quarantines the kernel on its device, gives the device canaries of all its engines,
// and has the product computed again elsewhere where the server's operator wants that.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
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
  // Gives a product back at its end: its status is DataLoss where the result was wrong, and
  // Cancelled or DeadlineExceeded where the check was ended early.
  using Done = std::function<void(std::unique_ptr<Product>)>;

  // Borrows everything; `log` may be null. `chip_state` gives what is known of a device's chip.
  AnswerChecker(const std::vector<ServedDevice>& devices, Scheduler& scheduler, Stats& stats,
                const Clock& clock, const VerifyOptions& options, IncidentLog* log,
                std::function<std::string(size_t device)> chip_state, Done done);
  // There must be no check left. Ends canaries that are under way.
  ~AnswerChecker();

  // Claims the time of the product's check, which is predicted to take so long, before the product
  // is queued: what it takes and waits for is set in the product. Threads: any.
  void Claim(Product& product, int64_t predicted_ns);

  // Checks the result of a product that is OK; `done` is called once, from another thread. The
  // job's operands and its tensors live until then; the job says where they lie in memory of the
  // host. Threads: any.
  void Check(std::unique_ptr<Product> product);

  // Ends checks early, whether they wait or run. Threads: any.
  void Cancel(absl::Span<const JobId> ids) { checks_.Cancel(ids); }
  // All, and those that come later. Threads: any.
  void Stop() {
    is_stopped_ = true;
    checks_.Stop();
  }

 private:
  struct Place {
    const ServedDevice* served = nullptr;
    const Kernel* kernel = nullptr;  // Null: there is none.
  };

  // One of the members that check.
  using Step = void (AnswerChecker::*)(std::unique_ptr<Product>, AbortFlag);

  void Post(std::unique_ptr<Product> product, Step step);
  void Begin(std::unique_ptr<Product> product);
  void Verify(std::unique_ptr<Product> product, AbortFlag abort);
  static absl::StatusOr<verify::CheckResult> CheckOnce(const Product& product, verify::Draw& draw,
                                                       AbortFlag abort);
  void ComputeOnceMore(std::unique_ptr<Product> product);
  void Compare(std::unique_ptr<Product> product, AbortFlag abort);
  // Whether the first of two results that differ has the element right.
  static absl::StatusOr<bool> IsElementRight(const Product& product,
                                             const verify::WrongElement& element, AbortFlag abort);
  void EndOk(std::unique_ptr<Product> product, const verify::CheckResult& check);
  // Nothing can be said of the result.
  void EndNotVerified(std::unique_ptr<Product> product, std::string_view reason);
  void EndWith(std::unique_ptr<Product> product, absl::Status status);
  void End(std::unique_ptr<Product> product);
  void EndEarly(std::unique_ptr<Product> product, const absl::Status& status);
  // The result of `place` is wrong, as `check` says.
  void EndWrong(std::unique_ptr<Product> product, Place place, const verify::CheckResult& check);
  // Keeps the incident; returns its fields for the log.
  std::string Note(const Product& product, Place place, const verify::CheckResult& check,
                   bool took_out_device);
  // What is kept of the product; its hashes go to the incident.
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
  int canaries_ ABSL_GUARDED_BY(mutex_) = 0;  // That are under way.
  // Neither the devices' own threads nor gRPC's check answers. Its threads end first.
  CheckQueue checks_;
};

}  // namespace gemmd
