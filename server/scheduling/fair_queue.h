// SPDX-License-Identifier: Apache-2.0
//
// The jobs that wait for one device, in an order that shares its time among the callers that want
// it, equally or by their shares: start-time fair queueing (Goyal, Vin, Cheng 1996) over flows, by
// expected time. Each caller's time is shared in the same way by the flows within it.
//
// Each flow has a tag, the virtual time at which its next job starts, and the flow of the smallest
// tag is next. A job that is launched moves its flow's tag on by its cost over the flow's share, so
// a flow with a thousand jobs has no more than its turn. What never ran is never charged.
//
// A caller has two flows within it, and they have its connections. One is for jobs that came while
// their connection had nothing else inside, the other one for those that joined others. Their parts
// are equal, so that whoever waits for each answer before the next call waits for one job of those
// who do not, however many connections they have. Where more connections wait for each answer, the
// first flow has as much more, so that none of its connections has less than one of the others.
//
// Knows no clock and no lock. Adding and taking cost O(log flows + log jobs of the flow).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "server/device/device.h"
#include "server/scheduling/flow.h"
#include "server/scheduling/linked_jobs.h"

namespace gemmd {

class FairQueue {
 public:
  struct Flow;
  struct Job {
    JobId id = 0;
    int64_t cost_ns = 0;  // The time that it is expected to take.
    double share = 1;     // Its caller's part of the device's time, beside the 1 of others.

    // The queue's own.
    Flow* flow = nullptr;
    uint64_t connection = 0;
    bool is_lone = false;  // Its connection had nothing else inside when it came.
    JobLinks<Job> waiting;
  };

  struct IsEarlier {
    bool operator()(const Flow* a, const Flow* b) const;
  };
  // A caller, one of the two flows within it, or one connection of those. Lives at least until each
  // job that entered has left.
  struct Flow {
    bool waits() const { return !waiting.empty() || !order.empty(); }

    Flow* parent = nullptr;
    int64_t tag_ns = 0;      // Among the flows of the parent.
    uint64_t turn = 0;       // The older one of two equal tags is first.
    double share = 1;        // A caller's is that of the last job that entered.
    int64_t waiting_ns = 0;  // The cost of those that wait.
    int64_t inside = 0;      // Jobs that entered and have not left.
    // How often the jobs of a caller or a connection lately took their predicted time.
    double pace = 1;

    LinkedJobs<Job, &Job::waiting> waiting;  // A connection's jobs.

    // The flows within, those of them that wait, and how many have jobs inside.
    using Order = std::set<Flow*, IsEarlier>;
    std::map<uint64_t, Flow> flows;
    Order order;
    Order::node_type spare;  // For the next one that waits.
    size_t busy_flows = 0;
    int64_t virtual_ns = 0;
  };

  // The job waits, behind those that the connection added before. Borrows it until Leave.
  void Enter(const FlowId& id, Job& job);
  void Leave(Job& job);

  // The job does not wait any longer; it has been launched or not.
  void Remove(Job& job);

  bool empty() const { return all_.order.empty(); }
  // The next job. There must be one.
  Job& first() const { return FirstOf(all_); }

  // The job is launched and expected to take so long. It waits, or has been removed.
  void Launch(Job& job, int64_t cost_ns);

  // The job had this much more of the device than was expected; less where negative.
  void Correct(Job& job, int64_t more_ns);

  // What is before a further job of a connection.
  struct Ahead {
    // The cost of the jobs that would be launched first, if no flow added anything else.
    int64_t waiting_ns = 0;
    // What other flows are expected to add to that: each of those that are ahead as much again as
    // waits there, as far as it is their turn, but all of them no more than kMostToCome times what
    // the job's own flow has before it. Where that has nothing, a further job has the next turn,
    // and nobody passes it.
    int64_t to_come_ns = 0;
  };
  // Stops counting where more than `enough_ns` waits; visits only flows that are ahead.
  Ahead AheadOf(const FlowId& id, int64_t enough_ns) const;
  int64_t AheadNs(const FlowId& id, int64_t enough_ns) const {
    return AheadOf(id, enough_ns).waiting_ns;
  }

  // With more, a device with many callers is refused work for which it would have had time.
  static constexpr int64_t kMostToCome = 3;

  // The cost of all jobs that wait.
  int64_t waiting_ns() const { return all_.waiting_ns; }
  // That of the connection, otherwise of the caller, otherwise 1, as far as they are known.
  double PaceOf(const FlowId& id) const;
  // For a job that took its predicted time so often. Where it was aborted, it would have taken
  // longer.
  static void LearnPace(const Job& job, double seen, bool is_whole);

  struct Inside {
    int64_t of_caller = 0;
    int64_t of_connection = 0;
  };
  // Jobs that are inside.
  Inside InsideOf(const FlowId& id) const;
  // Those that are remembered. A connection counts twice where it is in both flows of its caller.
  size_t callers() const { return callers_.size(); }
  size_t connections() const;

  // Callers without jobs are remembered for what they had lately, up to this number, and
  // connections without jobs up to the other one while their caller has jobs.
  static constexpr size_t kMostIdle = 1024;
  static constexpr size_t kMostIdleConnections = 64;

 private:
  // Caller, flow within it, connection.
  static constexpr size_t kLevels = 3;
  // The keys of the two flows within a caller.
  static constexpr uint64_t kLone = 0;
  static constexpr uint64_t kJoining = 1;

  // The flows that a further job would belong to; null where they are not known.
  struct Path {
    const Flow* caller = nullptr;
    const Flow* within = nullptr;
    const Flow* connection = nullptr;
  };
  Path FindPath(const FlowId& id) const;

  static Job& FirstOf(const Flow& flow);
  static int64_t VirtualNs(int64_t ns, double share) {
    return share == 1 ? ns : static_cast<int64_t>(static_cast<double>(ns) / share);
  }
  static int64_t StartNs(const Flow& flow);
  static int64_t AddAhead(const Flow& parent, const Flow* own, int64_t enough_ns,
                          int64_t& ahead_ns);
  static void WeighLone(Flow& caller);
  Flow& CallerOf(std::string_view name);
  static Flow& FlowWithin(Flow& parent, uint64_t key, size_t most_idle);
  void Move(Flow& flow, int64_t tag_ns);

  std::map<std::string, Flow, std::less<>> callers_;
  Flow all_;  // The callers' parent. Its own map of flows is empty, since callers have names.
  uint64_t last_turn_ = 0;
};

}  // namespace gemmd
