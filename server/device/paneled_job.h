// SPDX-License-Identifier: Apache-2.0
//
// A job that takes more memory than its device has: its panels are computed one after the other,
// each as a job that brings the operands that it needs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "server/device/device.h"
#include "server/device/panel.h"
#include "server/device/panel_plan.h"

namespace gemmd {

class PaneledJob : public std::enable_shared_from_this<PaneledJob> {
 public:
  // What the job needs of its device. All may be called from any thread.
  struct Calls {
    std::function<void(const Job&, Device::Done)> submit;  // Runs one panel.
    std::function<void(JobId)> abort;                      // Aborts the panel that runs.
    // Does work that takes some time on a thread that may take it.
    std::function<void(absl::AnyInvocable<void() &&>)> work;
    std::function<void(const PaneledJob&)> ended;  // The last of all, after the job's own end.
  };

  PaneledJob(const Job& job, const JobPlaces& places, const PanelPlan& plan, Device::Done done,
             Calls calls);

  // Goes on by itself from there; whoever it waits for keeps it.
  void Start();
  // No further panel begins. The one that runs is aborted by its number, which is the job's.
  void Abort() { is_aborted_ = true; }

  JobId id() const { return job_.id; }

 private:
  void RunNext();
  void EndPanel(JobOutcome outcome);
  void End(const absl::Status& status);

  const JobPlaces places_;
  const PanelPlan plan_;
  Device::Done done_;
  const Calls calls_;
  std::atomic<bool> is_aborted_ = false;

  // One step after the other uses what follows.
  Job job_;
  HeldBytes d_;  // Where the device gives the memory.
  PanelPieces pieces_;
  int64_t next_ = 0;
  JobOutcome outcome_;  // The sums of the panels' times.
};

}  // namespace gemmd
