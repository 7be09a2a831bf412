// SPDX-License-Identifier: Apache-2.0
//
// Jobs that are larger than the staging area, through which they go in parts, and jobs that are
// larger than the GPU's memory, which are computed in panels.
#include <algorithm>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/device/job_errand.h"
#include "server/device/panel_plan.h"
#include "server/device/worker_device.h"

namespace gemmd {
namespace {

// A panel leaves so much of the memory to small jobs and to canaries beside it.
int64_t PanelBytes(int64_t bytes) { return bytes - bytes / 16; }

}  // namespace

absl::Status WorkerDevice::Fits(const Problem& problem, const JobPlaces& places,
                                const Kernel* kernel, int64_t most_bytes) const {
  const absl::Status planned =
      PanelPlan::Of(problem, places, kernel, PanelBytes(most_bytes)).status();
  if (!absl::IsResourceExhausted(planned)) return planned;
  return absl::ResourceExhaustedError(
      Concat("device: ", info_.name, " has ", info_.memory_limit_bytes,
             " bytes for products and tensors (--gpu-memory-bytes), ", most_bytes,
             " of them for this one: ", std::string(planned.message())));
}

absl::Status WorkerDevice::CheckSize(const Problem& problem) const {
  ASSIGN_OR_RETURN(const int64_t bytes, MemoryOf(problem, {}, nullptr));
  if (bytes <= info_.memory_limit_bytes) return absl::OkStatus();
  return Fits(problem, {}, nullptr, info_.memory_limit_bytes);
}

// Errors: ResourceExhausted where the staging area is too small.
absl::Status WorkerDevice::CheckStaged(int64_t bytes) const {
  const int64_t most = StagingArea::BytesForJobs(options_.staging_bytes);
  if (bytes <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(Concat(
      "device: ", info_.name, " is given at most ", most,
      " bytes of operands and result at once (two thirds of --gpu-staging-bytes), got ", bytes));
}

// What tensors leave to jobs at any time comes first: panels of that size are not in the way of
// tensors that come meanwhile. What they leave now is next.
absl::StatusOr<PanelPlan> WorkerDevice::PlanPanels(const Job& job, int64_t left_bytes) const {
  const JobPlaces places = JobErrand::PlacesOf(job);
  const int64_t sure_bytes = info_.memory_limit_bytes - memory_.capacity_bytes();
  absl::StatusOr<PanelPlan> plan =
      PanelPlan::Of(job.problem, places, job.kernel, PanelBytes(sure_bytes));
  if (!absl::IsResourceExhausted(plan.status())) return plan;
  plan = PanelPlan::Of(job.problem, places, job.kernel, PanelBytes(left_bytes));
  if (!absl::IsResourceExhausted(plan.status())) return plan;
  return Fits(job.problem, places, job.kernel, left_bytes);
}

// False, and nothing is done, where the job fits into the memory that tensors leave, or where it
// never will, as `size` then says.
bool WorkerDevice::SubmitPaneled(const Job& job, Done& done, absl::Status& size) {
  const int64_t left_bytes = info_.memory_limit_bytes - memory_.used_bytes();
  const absl::StatusOr<JobLayout> all = LayOutJob(job.problem);
  // Most jobs are small: all of their matrices would fit twice.
  if (!all.ok() || all->end <= (left_bytes - job.workspace_bytes) / 2) return false;
  const JobPlaces places = JobErrand::PlacesOf(job);
  const absl::StatusOr<JobLayout> layout = LayOutJob(job.problem, places);
  if (!layout.ok() || !JobErrand::CheckSources(job, *layout).ok()) return false;
  const absl::StatusOr<int64_t> bytes = MemoryOf(job.problem, places, job.kernel);
  if (bytes.ok() && *bytes <= left_bytes) return false;
  const absl::StatusOr<PanelPlan> plan = PlanPanels(job, left_bytes);
  // One panel alone is the job itself, which the worker then answers.
  if (!plan.ok() || plan->count() <= 1) {
    size = plan.status();
    return false;
  }
  auto paneled = std::make_shared<PaneledJob>(job, places, *plan, std::move(done), PanelCalls());
  {
    MutexLock lock(&mutex_);
    paneled_.push_back(paneled);
  }
  paneled->Start();
  return true;
}

PaneledJob::Calls WorkerDevice::PanelCalls() {
  return {.submit = [this](const Job& panel, Done done) { Submit(panel, std::move(done)); },
          .abort = [this](JobId id) { Abort(id); },
          .work = [this](CopyThreads::Work work) { copy_threads_->Run(std::move(work)); },
          .ended =
              [this](const PaneledJob& ended) {
                {
                  MutexLock lock(&mutex_);
                  std::erase_if(paneled_, [&ended](const std::shared_ptr<PaneledJob>& one) {
                    return one.get() == &ended;
                  });
                }
                waker_->Wake();
              }};
}

// False, and nothing is done, where the job fits into the staging area, or not into the memory.
bool WorkerDevice::SubmitStreamed(const Job& job, Done& done) {
  const absl::StatusOr<JobLayout> layout = LayOutJob(job.problem, JobErrand::PlacesOf(job));
  if (!layout.ok() || layout->end > info_.memory_limit_bytes) return false;
  if (CheckStaged(layout->staged_in_bytes() + layout->staged_out_bytes()).ok()) return false;
  if (!JobErrand::CheckSources(job, *layout).ok()) return false;
  const auto ended = [this](const StreamedJob& ended_job) {
    {
      MutexLock lock(&mutex_);
      std::erase_if(streams_, [&ended_job](const std::shared_ptr<StreamedJob>& one) {
        return one.get() == &ended_job;
      });
    }
    StartStreamed();
    waker_->Wake();
  };
  const auto submit = [this](const Job& inner, Done inner_done) {
    Submit(inner, std::move(inner_done));
  };
  auto stream = std::make_shared<StreamedJob>(job, std::move(done), layout->end, memory_, clock_,
                                              submit, ended);
  {
    MutexLock lock(&mutex_);
    streams_waiting_.push_back(std::move(stream));
  }
  StartStreamed();
  return true;
}

// Begins with the next one that there is memory for beside the others.
void WorkerDevice::StartStreamed() {
  std::shared_ptr<StreamedJob> next;
  {
    MutexLock lock(&mutex_);
    if (streams_waiting_.empty()) return;
    int64_t bytes = streams_waiting_.front()->bytes();
    for (const std::shared_ptr<StreamedJob>& one : streams_) bytes += one->bytes();
    const int64_t most = info_.memory_limit_bytes - memory_.capacity_bytes();
    if (!streams_.empty() && bytes > most) return;
    next = std::move(streams_waiting_.front());
    streams_waiting_.pop_front();
    streams_.push_back(next);
  }
  copy_threads_->Run([next = std::move(next)] { next->Start(); });
}

}  // namespace gemmd
