// SPDX-License-Identifier: Apache-2.0
//
// What callers ask for, and waiting. How errands begin is in worker_device_errands.cc, how they end
// in worker_device_answers.cc, jobs that are too large for one errand in worker_device_large.cc,
// and the life of a worker in worker_device_life.cc.
#include "server/device/worker_device.h"

#include <poll.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/device/job_errand.h"

namespace gemmd {
namespace {

// How often the thread looks at the clock for an errand that another thread has handed over.
constexpr int64_t kTickNs = 100'000'000;

// How long a worker may take to end a job that nobody wants any more. A GPU should take less than
// 50 ms; with the worker all tensors on its GPU would be lost.
constexpr int64_t kTimeToAbortNs = 1'000'000'000;

}  // namespace

void WorkerDevice::Submit(const Job& job, Done done) {
  absl::Status size;
  // What is in parts is small (JoinLimits), and what is small goes as a whole.
  const bool is_in_parts =
      !job.d.parts.empty() || !job.a.parts.empty() || !job.b.parts.empty() || !job.c.parts.empty();
  if (!is_in_parts && (SubmitPaneled(job, done, size) || SubmitStreamed(job, done))) return;
  const int64_t submitted_ns = clock_.NowNs();
  std::unique_ptr<Errand> errand = MakeJobErrand(job, std::move(done));
  if (!size.ok()) errand->verdict = std::move(size);
  errand->submitted_ns = submitted_ns;
  {
    MutexLock lock(&mutex_);
    const bool may_begin = readiness_.ok() && !is_checking_ && !errand->verdict &&
                           errand->is_small() && queue_.MayBegin(*errand) &&
                           TakeRoom(*errand) == ErrandQueue::Room::kTaken;
    if (may_begin) {
      queue_.Enter(*errand);
      errand->begun_ns = submitted_ns;  // It has waited for nothing.
      BeginSmall(std::move(errand));
      return;
    }
    queue_.Add(std::move(errand));
  }
  waker_->Wake();
}

void WorkerDevice::Give(Errands errands) {
  {
    MutexLock lock(&mutex_);
    for (std::unique_ptr<Errand>& errand : errands) {
      errand->submitted_ns = clock_.NowNs();
      queue_.Add(std::move(errand));
    }
  }
  waker_->Wake();
}

void WorkerDevice::Abort(JobId id) {
  if (id == 0) return;
  {
    MutexLock lock(&mutex_);
    for (const std::shared_ptr<PaneledJob>& paneled : paneled_) {
      if (paneled->id() == id) paneled->Abort();
    }
    for (const std::unique_ptr<Errand>& sent : sent_) {
      if (sent == nullptr || sent->job_id != id) continue;
      sent->is_aborted = true;
      sent->abort_deadline_ns = clock_.NowNs() + kTimeToAbortNs;
      staging_->control().aborted_ids[sent->slot].store(sent->id, std::memory_order_relaxed);
      if (WasStarted(*sent)) return;
    }
    for (const std::shared_ptr<StreamedJob>& stream : streams_) {
      if (stream->id() == id) stream->Abort();
    }
    for (const std::shared_ptr<StreamedJob>& stream : streams_waiting_) {
      if (stream->id() == id) stream->Abort();
    }
    for (const auto& [errand, owner] : copied_) {
      if (errand->job_id == id) errand->is_aborted = true;
    }
    std::unique_ptr<Errand> waiting = queue_.TakeJob(id);
    if (waiting != nullptr) aborted_.push_back(std::move(waiting));
  }
  waker_->Wake();
}

std::unique_ptr<Errand> WorkerDevice::MakeJobErrand(const Job& job, Done done) {
  auto errand = std::make_unique<JobErrand>(job, std::move(done), profile_, results_);
  if (errand->verdict) return errand;
  absl::Status status = CheckStaged(errand->in_bytes + errand->out_bytes);
  for (const auto& [range, place] : errand->InBlocks()) {
    status.Update(memory_.ledger().Check(place.block, place.offset, range.bytes));
  }
  if (status.ok() && errand->is_small()) status = errand->CheckOperands();
  if (!status.ok()) errand->verdict = std::move(status);
  return errand;
}

void WorkerDevice::End(std::unique_ptr<Errand> errand, const absl::Status& status) const {
  if (!status.ok()) errand->times = {.wait_ns = clock_.NowNs() - errand->submitted_ns};
  // The caller may ask for room at once.
  errand->in = StagingRange();
  errand->out = StagingRange();
  if (!errand->is_ended) errand->End(status, errand->times);
}

// Answers all that waits, and what comes in meanwhile.
void WorkerDevice::RefuseWaiting() {
  EndAborted();
  while (true) {
    std::unique_ptr<Errand> refused;
    absl::Status status;
    {
      MutexLock lock(&mutex_);
      refused = queue_.TakeAny();
      if (refused == nullptr) return;
      status = readiness_.ok() ? absl::UnavailableError("stopping") : readiness_;
    }
    // What waited for a worker that is lost may have named its blocks.
    for (const BlockUse& use : refused->uses) {
      const absl::Status now = memory_.ledger().Check(use.block, 0, 0);
      if (absl::IsFailedPrecondition(now)) status = now;
    }
    if (refused->verdict) status = *refused->verdict;
    End(std::move(refused), status);
  }
}

// Answers the jobs that were aborted while they waited, here or at the worker, which need not have
// time for them soon.
void WorkerDevice::EndAborted() {
  Errands aborted;
  std::vector<Errand*> at_worker;
  {
    MutexLock lock(&mutex_);
    aborted.swap(aborted_);
    for (const std::unique_ptr<Errand>& sent : sent_) {
      if (sent == nullptr || !sent->is_aborted || sent->is_ended || WasStarted(*sent)) continue;
      sent->is_ended = true;
      at_worker.push_back(sent.get());
    }
  }
  for (std::unique_ptr<Errand>& one : aborted) End(std::move(one), AbortedLaunch());
  // Only this thread takes them from the worker.
  for (Errand* const one : at_worker) {
    one->End(AbortedLaunch(), {.wait_ns = clock_.NowNs() - one->submitted_ns});
  }
}

bool WorkerDevice::WasStarted(const Errand& errand) const {
  const std::atomic<uint64_t>& started = staging_->control().started_ids[errand.slot];
  return started.load(std::memory_order_acquire) == errand.id;
}

// Whether nothing is under way.
bool WorkerDevice::IsIdle() const {
  MutexLock lock(&mutex_);
  return jobs_under_way_ == 0 && memory_under_way_ == 0 && finishing_ == 0;
}

// Whether nothing waits, either.
bool WorkerDevice::IsFinished() const {
  if (!IsIdle()) return false;
  MutexLock lock(&mutex_);
  return queue_.is_empty() && aborted_.empty() && false_.empty() && streams_.empty() &&
         streams_waiting_.empty() && paneled_.empty();
}

absl::Status WorkerDevice::readiness() const {
  MutexLock lock(&mutex_);
  return readiness_;
}

DeviceCondition WorkerDevice::condition() const {
  MutexLock lock(&mutex_);
  DeviceCondition now = condition_;
  now.thread_turn_ns = turn_ns_;
  if (staging_ != nullptr) now.staging_used_bytes = staging_->taken_bytes();
  return now;
}

void WorkerDevice::WatchReadiness(Listener listener) {
  MutexLock lock(&listener_mutex_);
  listener_ = std::move(listener);
  if (listener_) listener_(readiness());
}

void WorkerDevice::SetReadiness(absl::Status new_readiness) {
  MutexLock lock(&listener_mutex_);
  {
    MutexLock state_lock(&mutex_);
    readiness_ = new_readiness;
  }
  if (listener_) listener_(new_readiness);
}

// Waits until the worker has sent something, somebody woke the thread, or the time is reached; at
// most a tick.
WorkerDevice::Event WorkerDevice::WaitForEvent(int64_t until_ns) const {
  turn_ns_ = clock_.NowNs();
  while (clock_.NowNs() < spin_until_ns_) {
    const Event event = Poll(0);
    if (event != Event::kTime) return event;
  }
  return Poll(std::clamp(until_ns - clock_.NowNs(), int64_t{0}, kTickNs));
}

WorkerDevice::Event WorkerDevice::Poll(int64_t wait_ns) const {
  const timespec limit = {.tv_sec = 0, .tv_nsec = wait_ns};
  // A closed socket has the number -1, which is left out.
  pollfd files[] = {{.fd = process_.socket(), .events = POLLIN, .revents = 0},
                    {.fd = waker_->descriptor(), .events = POLLIN, .revents = 0}};
  if (ppoll(files, std::size(files), &limit, nullptr) <= 0) return Event::kTime;
  if (files[0].revents != 0) return Event::kRecord;
  waker_->Forget();
  return Event::kWoken;
}

}  // namespace gemmd
