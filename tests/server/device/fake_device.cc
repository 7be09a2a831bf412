// SPDX-License-Identifier: Apache-2.0
#include "tests/server/device/fake_device.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "server/device/operands.h"

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

FakeDevice::FakeDevice(std::string name, DeviceProfile profile, int depth)
    : profile_(std::move(profile)), depth_(depth) {
  info_.name = std::move(name);
  info_.description = "fake device";
  info_.threads = 1;
}

FakeDevice::~FakeDevice() {
  while (held() > 0) CompleteNext(absl::UnavailableError("the fake device is gone"));
}

void FakeDevice::Submit(const Job& job, Done done) {
  {
    MutexLock lock(&mutex_);
    ++submitted_;
    if (!run_jobs_) {
      held_.push_back({job, std::move(done)});
      return;
    }
  }
  std::move(done)(RunOnCallingThread(job));
}

void FakeDevice::Abort(JobId id) {
  Held aborted;
  {
    MutexLock lock(&mutex_);
    ++aborts_;
    if (ignores_aborts_) return;
    const auto position = std::find_if(held_.begin(), held_.end(),
                                       [id](const Held& held) { return held.job.id == id; });
    if (position == held_.end()) return;
    aborted = std::move(*position);
    held_.erase(position);
  }
  JobOutcome outcome;
  outcome.status = absl::CancelledError("aborted");
  std::move(aborted.done)(std::move(outcome));
}

void FakeDevice::IgnoreAborts() {
  MutexLock lock(&mutex_);
  ignores_aborts_ = true;
}

int FakeDevice::aborts() const {
  MutexLock lock(&mutex_);
  return aborts_;
}

absl::Status FakeDevice::readiness() const {
  MutexLock lock(&mutex_);
  return readiness_;
}

void FakeDevice::WatchReadiness(Listener listener) {
  listener_ = std::move(listener);
  if (listener_) listener_(readiness());
}

void FakeDevice::SetReadiness(const absl::Status& readiness) {
  {
    MutexLock lock(&mutex_);
    readiness_ = readiness;
  }
  if (listener_) listener_(readiness);
}

void FakeDevice::RunJobs(bool run) {
  MutexLock lock(&mutex_);
  run_jobs_ = run;
}

bool FakeDevice::WaitForHeld(int count, absl::Duration timeout) {
  MutexLock lock(&mutex_);
  const auto enough = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return static_cast<int>(held_.size()) >= count;
  };
  return mutex_.AwaitWithTimeout(enough, timeout);
}

int FakeDevice::held() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(held_.size());
}

int FakeDevice::submitted() const {
  MutexLock lock(&mutex_);
  return submitted_;
}

void FakeDevice::CompleteNext(const absl::Status& status) {
  Held next;
  {
    MutexLock lock(&mutex_);
    assert(!held_.empty());
    next = std::move(held_.front());
    held_.pop_front();
  }
  Complete(std::move(next), status);
}

void FakeDevice::CompleteLast() {
  Held last;
  {
    MutexLock lock(&mutex_);
    assert(!held_.empty());
    last = std::move(held_.back());
    held_.pop_back();
  }
  Complete(std::move(last), absl::OkStatus());
}

void FakeDevice::Complete(Held held, const absl::Status& status) {
  JobOutcome outcome;
  if (status.ok()) {
    outcome = RunOnCallingThread(held.job);
  } else {
    outcome.status = status;
  }
  std::move(held.done)(std::move(outcome));
}

}  // namespace gemmd
