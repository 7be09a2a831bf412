// SPDX-License-Identifier: Apache-2.0
//
// Which of the jobs that wait for a device is next: in fair turns of callers and of their
// connections, by priority, and by what can still be in time. Knows no clock and no lock.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/device/device.h"
#include "server/product/prediction.h"
#include "server/system/clock.h"

namespace gemmd {

// Who shares a turn: a caller and, within its turn, one of its connections.
//
// Whom a job is for. Borrows the name.
struct FlowId {
  std::string_view caller;  // An identity of the rules, a user of unix sockets or a host.
  // Another number for each connection of the caller and each session on it.
  uint64_t connection = 0;
};

// The part of a peer's name (Gate::PeerOf) that its connections have in common: "ipv4:192.0.2.1" of
// "ipv4:192.0.2.1:50123", and "uid:1000", the user, of "unix:uid:1000".
std::string_view HostOf(std::string_view peer);

// Whether a product may wait for others.
enum class Priority : uint8_t { kNormal, kLow };
inline constexpr size_t kPriorities = 2;

// Lists of jobs that link themselves, so that a job that waits allocates nothing.
//
// A job's place in one list. A list is never copied together with its jobs' places.
template <typename Job>
struct JobLinks {
  Job* before = nullptr;
  Job* after = nullptr;
  bool is_listed = false;
};

// Jobs in the order of their ids. Borrows them until Remove.
template <typename Job, JobLinks<Job> Job::*kLinks>
class LinkedJobs {
 public:
  bool empty() const { return first_ == nullptr; }
  size_t size() const { return size_; }
  Job* first() const { return first_; }
  static Job* After(const Job& job) { return (job.*kLinks).after; }

  // Quick for ids that ascend.
  void Insert(Job& job) {
    assert(!(job.*kLinks).is_listed);
    Job* before = last_;
    while (before != nullptr && before->id > job.id) before = (before->*kLinks).before;
    Job* const after = before == nullptr ? first_ : (before->*kLinks).after;
    job.*kLinks = {.before = before, .after = after, .is_listed = true};
    (before == nullptr ? first_ : (before->*kLinks).after) = &job;
    (after == nullptr ? last_ : (after->*kLinks).before) = &job;
    ++size_;
  }

  // False where the job is in no list of this kind.
  bool Remove(Job& job) {
    const JobLinks<Job> links = job.*kLinks;
    if (!links.is_listed) return false;
    (links.before == nullptr ? first_ : (links.before->*kLinks).after) = links.after;
    (links.after == nullptr ? last_ : (links.after->*kLinks).before) = links.before;
    job.*kLinks = {};
    --size_;
    return true;
  }

 private:
  Job* first_ = nullptr;
  Job* last_ = nullptr;
  size_t size_ = 0;
};

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
    // waits there, as far as it is their turn, but all of them no more than kMaxToCome times what
    // the job's own flow has before it. Where that has nothing, a further job has the next turn,
    // and nobody passes it.
    int64_t to_come_ns = 0;
  };
  // Stops counting where more than `enough_ns` waits; visits only flows that are ahead.
  Ahead AheadOf(const FlowId& id, int64_t enough_ns) const;

  // With more, a device with many callers is refused work for which it would have had time.
  static constexpr int64_t kMaxToCome = 3;

  // The cost of all jobs that wait.
  int64_t waiting_ns() const { return all_.waiting_ns; }
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
  static constexpr size_t kMaxIdle = 1024;
  static constexpr size_t kMaxIdleConnections = 64;

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
  static Flow& FlowWithin(Flow& parent, uint64_t key, size_t max_idle);
  void Move(Flow& flow, int64_t tag_ns);

  std::map<std::string, Flow, std::less<>> callers_;
  Flow all_;  // The callers' parent. Its own map of flows is empty, since callers have names.
  uint64_t last_turn_ = 0;
};

// A job takes at most this many times the time that is expected of it.
inline constexpr int64_t kDoubt = 2;
// An answer takes this long to its caller, at most, where nothing goes wrong.
inline constexpr int64_t kAnswerNs = 1'000'000;

// The time that a job needs to be in time however the expectation errs.
inline int64_t SafeNs(int64_t expected_ns) { return kDoubt * expected_ns + kAnswerNs; }

// The time until the deadline; where there is none, more than any sum of predictions.
inline int64_t LeftNs(int64_t deadline_ns, int64_t now_ns) {
  return deadline_ns == kNoDeadlineNs ? kNoDeadlineNs : deadline_ns - now_ns;
}

// What waits for one device, and which of it is launched next.
//
// Jobs of normal priority go before those of low priority, but where both wait, low priority has a
// twentieth of the device's time. Within a priority the callers take fair turns. What a job is
// expected to take is asked when it comes and again at its launch: meanwhile the device may have
// turned out to be slower than it was when it was measured. A job that by its prediction can no
// longer be in time is not launched at all. One that is in time only if what is expected comes true
// to the point waits until there is no safe one: under overload, time for a doubtful job is time
// taken from a safe one. A job to which the device was promised at once is not doubted.
//
// Knows no clock and no lock.
class DeviceQueue {
 public:
  struct Job : FairQueue::Job {
    // The predicted time on the device. Whether the job can be in time at all rests on this alone:
    // a job that is not run corrects no prediction.
    int64_t predicted_ns = 0;
    // What jobs like this one took beside that; null: as predicted.
    Correction* correction = nullptr;
    int64_t deadline_ns = kNoDeadlineNs;
    Priority priority = Priority::kNormal;
    bool is_promised = false;  // Nothing that waited was ahead of it when it came.

    // The queue's own.
    bool is_doubtful = false;
    JobLinks<Job> doubtful;
    bool is_owed_for = false;  // Both priorities waited when it was launched.

    int64_t expected_ns() const { return ExpectedNs(predicted_ns, correction); }
  };

  // The job waits. Borrows it until End or Remove.
  void Add(const FlowId& flow, Job& job);

  // A waiting job is to be dropped.
  void Remove(Job& job);

  // What is to be launched now, which no longer waits, and what can no longer be in time, which is
  // removed.
  struct Choice {
    Job* next = nullptr;  // Null where nothing is left.
    std::vector<Job*> too_late;
  };
  Choice TakeNext(int64_t now_ns);

  // A waiting job is launched together with the one that TakeNext gave.
  void TakeAlso(Job& job) { Launch(ClassOf(job), job); }

  bool empty() const;
  // The job that TakeNext would look at first. There must be one.
  const Job& first() { return NextClass()->first(); }

  // A job that was launched has ended, and had the device for `ran_ns`.
  void End(Job& job, int64_t ran_ns);

  // The expected time of what would be launched before a further job.
  FairQueue::Ahead AheadOf(const FlowId& flow, Priority priority, int64_t enough_ns) const;

  // The expected time of all jobs that wait.
  int64_t waiting_ns() const;
  // Jobs that wait or run.
  FairQueue::Inside InsideOf(const FlowId& flow) const;

  // One part in this many of the device's time is for low priority where it is wanted.
  static constexpr int64_t kLowPart = 20;

 private:
  struct Class {
    FairQueue fair;
    LinkedJobs<Job, &Job::doubtful> doubtful;  // They wait until `fair` is empty.
    int64_t doubtful_ns = 0;

    bool empty() const { return fair.empty() && doubtful.empty(); }
    int64_t waiting_ns() const { return fair.waiting_ns() + doubtful_ns; }
    Job& first() const {
      return fair.empty() ? *doubtful.first() : static_cast<Job&>(fair.first());
    }
  };

  const Class& Of(Priority priority) const { return classes_[static_cast<size_t>(priority)]; }
  Class& ClassOf(const Job& job) { return classes_[static_cast<size_t>(job.priority)]; }
  Class* NextClass();
  static void Unlist(Class& of, Job& job);
  static void SetAside(Class& of, Job& job);
  void Launch(Class& of, Job& job);
  void Owe(const Job& job, int64_t had_ns);

  std::array<Class, kPriorities> classes_;
  int64_t owed_to_low_ns_ = 0;  // For the time that normal priority had while low waited.
};

// Whose products are light: how much work a device may have ahead of time depends on who could come
// while it has it.
//
// Knows no clock and no lock.
//
// Remembers the two flows with the least products, so that there is another one for each flow.
class LightFlows {
 public:
  // For so long a flow counts that sends nothing.
  static constexpr int64_t kMemoryNs = 10'000'000'000;

  // A job of the flow has come, which is predicted to take so long.
  void Add(const FlowId& flow, int64_t predicted_ns, int64_t now_ns);

  // The least time that a job of another flow was predicted to take of late; the largest number
  // where there was none.
  int64_t MinOfOthers(const FlowId& flow, int64_t now_ns) const;

 private:
  struct Entry {
    std::string caller;
    uint64_t connection = 0;
    int64_t min_ns = std::numeric_limits<int64_t>::max();
    int64_t until_ns = std::numeric_limits<int64_t>::min();

    bool IsOver(int64_t now_ns) const { return until_ns <= now_ns; }
    bool IsOf(const FlowId& flow) const {
      return caller == flow.caller && connection == flow.connection;
    }
  };

  std::array<Entry, 2> entries_;
};

}  // namespace gemmd
