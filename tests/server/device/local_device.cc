// SPDX-License-Identifier: Apache-2.0
#include "tests/server/device/local_device.h"

#include <utility>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/host_rates.h"

namespace gemmd {

LocalDevice::LocalDevice(const Target& target, int threads)
    : host_(target, threads, /*poisons_freed=*/false, /*shared=*/nullptr),
      launcher_(/*poisons_freed=*/false),
      thread_([this] { Run(); }) {
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_measured_; });
}

LocalDevice::~LocalDevice() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void LocalDevice::Submit(const Job& job, Done done) {
  auto errand = std::make_unique<LaunchErrand>(job, std::move(done), host_);
  errand->submitted_ns = clock_.NowNs();
  MutexLock lock(&mutex_);
  waiting_.push_back(std::move(errand));
}

void LocalDevice::Abort(JobId id) {
  if (id == 0) return;
  MutexLock lock(&mutex_);
  if (running_ != nullptr && running_->job_id == id) running_->is_aborted = true;
  for (const std::unique_ptr<LaunchErrand>& errand : waiting_) {
    if (errand->job_id == id) errand->is_aborted = true;
  }
}

// Null if the device stops and no job is left.
std::unique_ptr<LaunchErrand> LocalDevice::TakeNext() {
  MutexLock lock(&mutex_);
  running_ = nullptr;
  mutex_.Await(
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); });
  if (waiting_.empty()) return nullptr;
  std::unique_ptr<LaunchErrand> next = std::move(waiting_.front());
  waiting_.erase(waiting_.begin());
  running_ = next.get();
  return next;
}

void LocalDevice::Run() {
  SetThreads(host_.info.threads);
  profile_ = MeasureRates(host_.target);
  {
    MutexLock lock(&mutex_);
    is_measured_ = true;
  }
  while (const std::unique_ptr<LaunchErrand> errand = TakeNext()) {
    Errand::Times times;
    const int64_t begun_ns = clock_.NowNs();
    times.wait_ns = begun_ns - errand->submitted_ns;
    absl::Status status = errand->Prepare();
    const int64_t ready_ns = clock_.NowNs();
    times.copy_in_ns = ready_ns - begun_ns;
    if (status.ok()) status = errand->RunHere(launcher_);
    times.compute_ns = clock_.NowNs() - ready_ns;
    Copies copies;
    if (status.ok()) status = errand->PlaceResult(copies);
    if (status.ok()) CopyAll(copies);
    {
      MutexLock lock(&mutex_);
      running_ = nullptr;
    }
    errand->End(status, times);
  }
}

}  // namespace gemmd
