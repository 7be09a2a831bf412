// SPDX-License-Identifier: Apache-2.0
//
// The members of a joined job with their tensors at a device, where all of them are there already:
// what has to be moved, or waited for, would keep the others waiting.
#pragma once

#include <memory>
#include <vector>

#include "server/device/job.h"
#include "server/device/joined_job.h"
#include "server/store/device_copies.h"

namespace gemmd {

class BroughtJobs {
 public:
  // The job has members. `place` is null where the device reads memory of the host. Null where a
  // tensor is not there, or others have the right to overwrite it elsewhere; nothing is taken then.
  static std::unique_ptr<BroughtJobs> TakeAtOnce(DeviceCopies* place, const Job& job);

  // What the device is to do. Lives as long as this.
  const Job& job() const { return joined_->job(); }

  // It has ended: adds how each member did. Once.
  void End(JobOutcome& outcome);

 private:
  bool TakeAll(DeviceCopies* place, const Job& job);

  std::vector<Job> members_;
  std::unique_ptr<JoinedJob> joined_;
};

}  // namespace gemmd
