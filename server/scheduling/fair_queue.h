// SPDX-License-Identifier: Apache-2.0
//
// The jobs that wait for one device, in an order that shares its time among the callers that want
// it, equally or by their shares: start-time fair queueing (Goyal, Vin, Cheng 1996) over flows, by
// expected time.
//
// Each flow has a tag, the virtual time at which its next job starts, and the flow of the smallest
// tag is next. A job that is launched moves its flow's tag on by its cost over the flow's share, so
// a flow with a thousand jobs has no more than its turn. What never ran is never charged. Knows no
// clock and no lock. Adding and taking cost O(log flows + log jobs of the flow).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "server/device/device.h"

namespace gemmd {

class FairQueue {
 public:
  struct Flow;
  struct Job {
    JobId id = 0;
    int64_t cost_ns = 0;   // The time that it is expected to take.
    double share = 1;      // Its flow's part of the device's time, beside the 1 of others.
    Flow* flow = nullptr;  // The queue's own.
  };

  // One caller. Lives at least until each job that entered has left.
  struct Flow {
    int64_t tag_ns = 0;
    uint64_t turn = 0;  // The older one of two equal tags is first.
    std::map<JobId, Job*> waiting;
    int64_t waiting_ns = 0;  // The cost of those that wait.
    int64_t inside = 0;      // Jobs that entered and have not left.
    double share = 1;        // That of the last job that entered.
    double pace = 1;         // How often its jobs lately took their predicted time.
  };

  // The job waits, behind those that the flow of this name added before. Borrows it until Leave.
  void Enter(std::string_view name, Job& job);
  void Leave(Job& job);

  // The job does not wait any longer; it has been launched or not.
  void Remove(Job& job);

  bool empty() const { return order_.empty(); }
  // The next job. There must be one.
  Job& first() const { return *(*order_.begin())->waiting.begin()->second; }

  // The job is launched and expected to take so long. It waits, or has been removed.
  void Launch(Job& job, int64_t cost_ns);

  // The job had this much more of the device than was expected; less where negative.
  void Correct(Job& job, int64_t more_ns) {
    Move(*job.flow, job.flow->tag_ns + VirtualNs(more_ns, job.share));
  }

  // The cost of the jobs that would be launched before a further job of the flow, if no flow added
  // anything else. Stops counting where that is more than `enough_ns`; visits only flows
  // that are ahead.
  int64_t AheadNs(std::string_view name, int64_t enough_ns) const;

  // The cost of all jobs that wait.
  int64_t waiting_ns() const { return waiting_ns_; }
  // 1 for a flow that is not known.
  double PaceOf(std::string_view name) const;
  // Jobs of the flow that are inside.
  int64_t InsideOf(std::string_view name) const;
  // Flows that are remembered: those with jobs inside, and at most kMostIdle others.
  size_t flows() const { return flows_.size(); }

  // Flows without jobs are remembered for what they had lately, up to this number.
  static constexpr size_t kMostIdle = 1024;

 private:
  struct IsEarlier {
    bool operator()(const Flow* a, const Flow* b) const {
      return a->tag_ns != b->tag_ns ? a->tag_ns < b->tag_ns : a->turn < b->turn;
    }
  };
  using Order = std::set<Flow*, IsEarlier>;

  static int64_t VirtualNs(int64_t ns, double share) {
    return share == 1 ? ns : static_cast<int64_t>(static_cast<double>(ns) / share);
  }
  Flow& FlowOf(std::string_view name);
  void Move(Flow& flow, int64_t tag_ns);
  void ForgetIdle();

  std::map<std::string, Flow, std::less<>> flows_;
  Order order_;  // The flows with waiting jobs.
  int64_t virtual_ns_ = 0;
  int64_t waiting_ns_ = 0;
  uint64_t last_turn_ = 0;
  size_t busy_flows_ = 0;  // Flows with jobs inside.
};

}  // namespace gemmd
