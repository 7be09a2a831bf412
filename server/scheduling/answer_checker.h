// SPDX-License-Identifier: Apache-2.0
//
// Checks the results of jobs before they become answers, and does what a wrong one asks for: notes
// the incident, quarantines the kernel on its device, gives the device canaries of all its engines,
// and has the product computed again elsewhere where the server's operator wants that.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/device/served_device.h"
#include "server/scheduling/incidents.h"
#include "server/scheduling/scheduler.h"
#include "server/scheduling/stats.h"
#include "server/scheduling/verification.h"
#include "server/scheduling/verify_threads.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"
#include "server/trust/identity.h"

namespace gemmd {

// A job whose result is to be checked. The job's operands and its tensors live until the check is
// over; the job says where they lie in memory of the host.
struct CheckedJob {
  Job job;
  const ServedDevice* served = nullptr;  // That it runs on.
  VerifyRule rule;
  Constraints constraints;
  std::string device;  // As the request names it; empty where it names none.
  std::string flow;
  uint64_t connection = 0;
  Priority priority = Priority::kNormal;
  std::shared_ptr<const Identity> caller;  // Null where callers are not known by name.
  int64_t deadline_ns = kNoDeadlineNs;
  std::string request_id;
};

// How it ended: the result is DataLoss where it was wrong, and Cancelled or DeadlineExceeded where
// the check was ended early.
struct CheckedResult {
  JobResult result = {};
  AnswerVerification verification = {};  // Where the result is OK.
  const Kernel* kernel = nullptr;        // Those that computed it.
  const ServedDevice* served = nullptr;
};

class AnswerChecker {
 public:
  using Done = absl::AnyInvocable<void(CheckedResult) &&>;

  // Borrows everything; `log` may be null. `chip_state` gives what is known of a device's chip.
  AnswerChecker(const std::vector<ServedDevice>& devices, Scheduler& scheduler, Stats& stats,
                const Clock& clock, const VerifyOptions& options, IncidentLog* log,
                std::function<std::string(size_t device)> chip_state);
  // There must be no check left. Ends canaries that are under way.
  ~AnswerChecker();

  // Checks a result that is OK; `done` is called once, from another thread. Threads: any.
  void Check(std::unique_ptr<CheckedJob> job, JobResult result, Done done);

  // Ends checks early. Threads: any.
  void Cancel(absl::Span<const JobId> ids) { threads_.Cancel(ids); }
  void Stop() { threads_.Stop(); }

 private:
  struct Task;
  struct Place {
    const ServedDevice* served = nullptr;
    const Kernel* kernel = nullptr;  // Null: there is none.
  };

  void Begin(std::unique_ptr<Task> task);
  void Verify(std::unique_ptr<Task> task, verify::Draw& draw, AbortFlag abort);
  static absl::StatusOr<verify::CheckResult> CheckOnce(const Task& task, verify::Draw& draw,
                                                       AbortFlag abort);
  void ComputeOnceMore(std::unique_ptr<Task> task);
  void Compare(std::unique_ptr<Task> task, AbortFlag abort);
  // Whether the first of two results that differ has the element right.
  static absl::StatusOr<bool> IsElementRight(const Task& task, const verify::WrongElement& element,
                                             AbortFlag abort);
  void EndOk(std::unique_ptr<Task> task, const verify::CheckResult& check);
  // Nothing can be said of the result.
  void EndNotVerified(std::unique_ptr<Task> task, std::string_view reason);
  void EndWith(std::unique_ptr<Task> task, absl::Status status);
  void EndEarly(std::unique_ptr<Task> task, const absl::Status& status);
  // The result of `place` is wrong, as `check` says.
  void EndWrong(std::unique_ptr<Task> task, Place place, const verify::CheckResult& check);
  void Note(const Task& task, Place place, const verify::CheckResult& check, bool took_out_device);
  // What is kept of the product; its hashes go to the incident.
  std::shared_ptr<KeptProduct> Keep(const Job& job, Incident& incident) const;
  void ComputeElsewhere(std::unique_ptr<Task> task, Place place);
  Submission SubmissionFor(const Task& task, Place place) const;

  Place EqualPlace(const CheckedJob& job) const;
  Place PlaceForRetry(const CheckedJob& job) const;
  bool CanRun(Place place, const Problem& problem) const;
  // Whether the caller's rules allow the device.
  static bool MayUse(const CheckedJob& job, const ServedDevice& served);
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
  Mutex mutex_;
  int canaries_ ABSL_GUARDED_BY(mutex_) = 0;  // That are under way.
  VerifyThreads threads_;
};

}  // namespace gemmd
