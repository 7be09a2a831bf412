// SPDX-License-Identifier: Apache-2.0
#include "server/store/brought_jobs.h"

#include <utility>

#include "server/store/product_tensors.h"

namespace gemmd {

std::unique_ptr<BroughtJobs> BroughtJobs::TakeAtOnce(DeviceCopies* place, const Job& job) {
  auto brought = std::make_unique<BroughtJobs>();
  if (!brought->TakeAll(place, job)) return nullptr;
  for (const Job& member : brought->members_) {
    if (member.tensors != nullptr) member.tensors->BeginTaken();
  }
  return brought;
}

bool BroughtJobs::TakeAll(DeviceCopies* place, const Job& job) {
  members_.reserve(job.members.size());
  const Job& first = *job.members.front();
  bool are_there = true;
  for (const Job* const one : job.members) {
    Job& member = members_.emplace_back(*one);
    // What all of them read is brought once.
    for (Source Job::*const of : {&Job::a, &Job::b, &Job::c}) {
      if (one != &first && IsSamePlace(member.*of, first.*of)) member.*of = members_.front().*of;
    }
    are_there = member.tensors == nullptr || member.tensors->TakeAtOnce(place, member);
    if (!are_there) break;
  }
  if (!are_there) {
    members_.pop_back();
  } else {
    std::vector<const Job*> members;
    for (const Job& member : members_) members.push_back(&member);
    absl::StatusOr<std::unique_ptr<JoinedJob>> joined =
        JoinedJob::Of(job.joining, job.id, std::move(members));
    if (joined.ok() && (*joined)->SetKernel(*job.kernel).ok()) {
      joined_ = *std::move(joined);
      return true;
    }
  }
  for (const Job& member : members_) {
    if (member.tensors != nullptr) member.tensors->GiveBackTaken();
  }
  return false;
}

void BroughtJobs::End(JobOutcome& outcome) {
  outcome.members.resize(members_.size());
  for (size_t i = 0; i < members_.size(); ++i) {
    JobOutcome& own = outcome.members[i];
    ProductTensors* const tensors = members_[i].tensors;
    own.status = tensors == nullptr ? outcome.status : tensors->EndJob(outcome.status);
    own.wait_ns = outcome.wait_ns;
    own.copy_in_ns = outcome.copy_in_ns;
    own.compute_ns = outcome.compute_ns;
    own.copy_out_ns = outcome.copy_out_ns;
    own.kernel = joined_->job().kernel;
  }
}

}  // namespace gemmd
