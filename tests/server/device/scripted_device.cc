// SPDX-License-Identifier: Apache-2.0
#include "tests/server/device/scripted_device.h"

#include <cassert>
#include <latch>
#include <utility>
#include <vector>

#include "server/device/operands.h"
#include "tests/testing/test_kernel.h"

namespace gemmd {
namespace {

JobOutcome RunOnCallingThread(const Job& job) {
  // The alignment of std::max_align_t is not enough for GemmArgs::workspace, so leave room to
  // align.
  constexpr uintptr_t kAlignment = 64;
  std::vector<std::byte> memory(static_cast<size_t>(job.workspace_bytes) + kAlignment);
  const uintptr_t start = reinterpret_cast<uintptr_t>(memory.data());
  const size_t skipped = (kAlignment - start % kAlignment) % kAlignment;
  const auto workspace =
      absl::MakeSpan(memory.data() + skipped, static_cast<size_t>(job.workspace_bytes));
  JobOutcome outcome;
  std::byte* d = job.d.memory;
  if (d == nullptr) {
    outcome.d = HeldBytes::Zeros(job.d_bytes).value();
    d = outcome.d.bytes().data();
  }
  WarmMemory copies(0);
  Gathering gathering(copies, /*threads=*/1);
  outcome.status = job.kernel->launch(
      ArgsAt(job.problem, {}, gathering.TakeAll(job, nullptr).value(), d, workspace));
  outcome.compute_ns = 1;
  return outcome;
}

}  // namespace

ScriptedDevice::ScriptedDevice(std::string name, DeviceProfile profile, int depth)
    : profile_(std::move(profile)), depth_(depth) {
  info_.name = std::move(name);
  info_.kind = profile_.target.kind;
  info_.description = "scripted device";
  info_.threads = 1;
}

ScriptedDevice::~ScriptedDevice() {
  while (held() > 0) CompleteNext(absl::UnavailableError("the scripted device is gone"));
  if (inner_ == nullptr || owned_ != nullptr) return;
  std::latch ended(1);  // From the standard library, which ThreadSanitizer understands.
  std::string d;
  inner_->Submit(TestJob(&d), [&ended](JobOutcome) { ended.count_down(); });
  ended.wait();
}

JobOutcome ScriptedDevice::Compute(const Job& job) const {
  return compute ? compute(job) : RunOnCallingThread(job);
}

void ScriptedDevice::Submit(const Job& job, Done done) {
  if (on_submit) on_submit(job, done);
  {
    MutexLock lock(&mutex_);
    ++submitted_;
    if (!run_jobs_) {
      held_.push_back({job, std::move(done)});
      if (held_.size() == 1 && on_oldest) on_oldest(&job);
      return;
    }
  }
  Run({job, std::move(done)});
}

void ScriptedDevice::Run(Held held) {
  if (inner_ != nullptr) return inner_->Submit(held.job, std::move(held.done));
  std::move(held.done)(Compute(held.job));
}

ScriptedDevice::Held ScriptedDevice::Take(size_t index) {
  assert(index < held_.size());
  Held taken = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  if (index == 0 && on_oldest) on_oldest(held_.empty() ? nullptr : &held_.front().job);
  return taken;
}

void ScriptedDevice::Abort(JobId id) {
  Held aborted;
  {
    MutexLock lock(&mutex_);
    ++aborts_;
    if (ignores_aborts_) return;
    size_t index = 0;
    while (index < held_.size() && held_[index].job.id != id) ++index;
    if (index < held_.size()) aborted = Take(index);
  }
  if (aborted.done) {
    std::move(aborted.done)({.status = absl::CancelledError("aborted")});
  } else if (inner_ != nullptr) {
    inner_->Abort(id);
  }
}

void ScriptedDevice::IgnoreAborts() {
  MutexLock lock(&mutex_);
  ignores_aborts_ = true;
}

int ScriptedDevice::aborts() const {
  MutexLock lock(&mutex_);
  return aborts_;
}

absl::Status ScriptedDevice::readiness() const {
  MutexLock lock(&mutex_);
  return readiness_;
}

void ScriptedDevice::WatchReadiness(Listener listener) {
  listener_ = std::move(listener);
  if (listener_) listener_(readiness());
}

void ScriptedDevice::SetReadiness(const absl::Status& readiness) {
  {
    MutexLock lock(&mutex_);
    readiness_ = readiness;
  }
  if (listener_) listener_(readiness);
}

void ScriptedDevice::RunJobs(bool run) {
  MutexLock lock(&mutex_);
  run_jobs_ = run;
}

bool ScriptedDevice::WaitForHeld(int count, absl::Duration timeout) {
  MutexLock lock(&mutex_);
  const auto enough = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return static_cast<int>(held_.size()) >= count;
  };
  return mutex_.AwaitWithTimeout(enough, timeout);
}

int ScriptedDevice::held() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(held_.size());
}

int ScriptedDevice::submitted() const {
  MutexLock lock(&mutex_);
  return submitted_;
}

void ScriptedDevice::CompleteNext(const absl::Status& status) {
  Held next;
  {
    MutexLock lock(&mutex_);
    next = Take(0);
  }
  if (status.ok()) return Run(std::move(next));
  std::move(next.done)({.status = status});
}

void ScriptedDevice::CompleteNextWith(JobOutcome outcome) {
  Held next;
  {
    MutexLock lock(&mutex_);
    next = Take(0);
  }
  std::move(next.done)(std::move(outcome));
}

void ScriptedDevice::CompleteLast() {
  Held last;
  {
    MutexLock lock(&mutex_);
    last = Take(held_.size() - 1);
  }
  Run(std::move(last));
}

}  // namespace gemmd
