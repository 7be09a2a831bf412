// SPDX-License-Identifier: Apache-2.0
#include "server/store/resident_device.h"

#include <algorithm>
#include <utility>

#include "server/store/brought_jobs.h"
#include "server/store/product_tensors.h"

namespace gemmd {

ResidentDevice::ResidentDevice(std::unique_ptr<Device> device)
    : copies_(device->memory() == nullptr
                  ? nullptr
                  : std::make_shared<DeviceCopies>(*device->memory(), device->info().name)),
      device_(std::move(device)) {}

ResidentDevice::~ResidentDevice() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  // Tensors that outlive the device free nothing there.
  if (copies_ != nullptr) copies_->Close();
  // Another device's thread may have brought a tensor here whose job has ended meanwhile.
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return on_their_way_.empty(); });
}

void ResidentDevice::Submit(const Job& job, Done done) {
  if (!job.members.empty()) return SubmitJoined(job, std::move(done));
  if (job.tensors == nullptr) return device_->Submit(job, std::move(done));
  auto bringing = std::make_unique<Bringing>(Bringing{job, std::move(done), clock_.NowNs()});
  {
    MutexLock lock(&mutex_);
    on_their_way_.emplace(job.id, false);
  }
  Job& brought = bringing->job;
  job.tensors->Bring(copies_.get(), brought,
                     [this, bringing = std::move(bringing)](const absl::Status& status) mutable {
                       SubmitBrought(std::move(bringing), status);
                     });
}

void ResidentDevice::SubmitJoined(const Job& job, Done done) {
  const bool has_tensors =
      std::any_of(job.members.begin(), job.members.end(),
                  [](const Job* member) { return member->tensors != nullptr; });
  if (!has_tensors) return device_->Submit(job, std::move(done));
  std::unique_ptr<BroughtJobs> brought = BroughtJobs::TakeAtOnce(copies_.get(), job);
  if (brought == nullptr) return SubmitApart(job, std::move(done));
  const Job& all = brought->job();
  device_->Submit(
      all, [brought = std::move(brought), done = std::move(done)](JobOutcome outcome) mutable {
        brought->End(outcome);
        std::move(done)(std::move(outcome));
      });
}

// Each member by itself, as if it had never been joined.
void ResidentDevice::SubmitApart(const Job& job, Done done) {
  auto apart = std::make_shared<Apart>();
  apart->left = job.members.size();
  apart->outcome.members.resize(job.members.size());
  apart->done = std::move(done);
  const std::vector<const Job*> members(job.members.begin(), job.members.end());
  {
    MutexLock lock(&mutex_);
    std::vector<JobId>& ids = apart_[job.id];
    for (const Job* const member : members) ids.push_back(member->id);
  }
  for (size_t i = 0; i < members.size(); ++i) {
    Submit(*members[i], [this, apart, i, id = job.id](JobOutcome outcome) {
      apart->outcome.members[i] = std::move(outcome);
      if (--apart->left > 0) return;
      {
        MutexLock lock(&mutex_);
        apart_.erase(id);
      }
      std::move(apart->done)(std::move(apart->outcome));
    });
  }
}

void ResidentDevice::SubmitBrought(std::unique_ptr<Bringing> bringing, const absl::Status& status) {
  const JobId id = bringing->job.id;
  absl::Status refused = status;
  {
    MutexLock lock(&mutex_);
    if (is_stopping_) refused = absl::UnavailableError("the server is stopping");
    if (on_their_way_[id]) refused = AbortedLaunch();
    if (!refused.ok()) on_their_way_.erase(id);
  }
  if (!refused.ok()) {
    JobOutcome outcome;
    outcome.status = refused;
    bringing->job.tensors->EndJob(refused).IgnoreError();
    return std::move(bringing->done)(std::move(outcome));
  }
  const int64_t bring_ns = clock_.NowNs() - bringing->began_ns;
  device_->Submit(bringing->job, [bring_ns, tensors = bringing->job.tensors,
                                  done = std::move(bringing->done)](JobOutcome outcome) mutable {
    outcome.copy_in_ns += bring_ns;
    outcome.status = tensors->EndJob(outcome.status);
    std::move(done)(std::move(outcome));
  });
  bool is_aborted = false;
  {
    MutexLock lock(&mutex_);
    // It may have been aborted since the last look, when the device did not know it yet.
    is_aborted = on_their_way_[id];
  }
  if (is_aborted) device_->Abort(id);
  MutexLock lock(&mutex_);
  on_their_way_.erase(id);
}

void ResidentDevice::Abort(JobId id) {
  std::vector<JobId> members;
  {
    MutexLock lock(&mutex_);
    if (const auto apart = apart_.find(id); apart != apart_.end()) members = apart->second;
    const auto found = on_their_way_.find(id);
    if (found != on_their_way_.end()) found->second = true;
  }
  if (members.empty()) return device_->Abort(id);
  for (const JobId member : members) Abort(member);
}

DeviceCondition ResidentDevice::condition() const {
  DeviceCondition condition = device_->condition();
  if (copies_ == nullptr) return condition;
  const DeviceCopies::Counts copies = copies_->counts();
  condition.tensor_bytes = copies.bytes;
  condition.tensor_hits = copies.hits;
  condition.tensors_brought = copies.made;
  condition.tensors_evicted = copies.evictions;
  condition.tensors_written_back = copies.written_back;
  return condition;
}

std::unique_ptr<Device> WithTensors(std::unique_ptr<Device> device, TensorStore& store) {
  auto resident = std::make_unique<ResidentDevice>(std::move(device));
  store.AddDevice(resident->info().name, resident->copies());
  return resident;
}

}  // namespace gemmd
