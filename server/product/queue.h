// SPDX-License-Identifier: Apache-2.0
//
// Chooses which of the jobs that wait for a device is next: in fair turns of callers and of their
// connections, by priority, and by which deadlines can still be met. Has no clock and no lock.
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

// Who takes turns: callers and, within a caller's turn, its connections.
//
// The flow that a job belongs to. Borrows the name.
struct FlowId {
  std::string_view caller;  // An identity of the rules, a user of unix sockets or a host.
  // Unique per connection of the caller and per session on it.
  uint64_t connection = 0;
};

// Products of low priority wait for those of normal priority.
enum class Priority : uint8_t { kNormal, kLow };
inline constexpr size_t kPriorities = 2;

// Intrusive lists of jobs, so that a waiting job allocates nothing.
//
// A job's links in one list. Must not be copied to another job.
template <typename Job>
struct JobLinks {
  Job* before = nullptr;
  Job* after = nullptr;
  bool is_listed = false;
};

// A list of jobs in the order of their ids. Borrows them until Remove.
template <typename Job, JobLinks<Job> Job::*kLinks>
class LinkedJobs {
 public:
  bool empty() const { return first_ == nullptr; }
  size_t size() const { return size_; }
  Job* first() const { return first_; }
  static Job* After(const Job& job) { return (job.*kLinks).after; }

  // Fast if ids ascend.
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

  // Returns false if the job is in no list of this kind.
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

// The jobs that wait for one device, in an order that shares its time among callers, equally or by
// their shares: start-time fair queueing (Goyal, Vin, Cheng 1996) over flows, by expected time. The
// flows within a caller share its time in the same way.
//
// Each flow has a tag, the virtual time at which its next job starts, and the flow with the
// smallest tag is next. Launching a job advances its flow's tag by the job's cost divided by the
// flow's share, so a flow with a thousand jobs gets no more than its turn. Jobs that never ran are
// never charged.
//
// Each caller has two flows, which in turn contain its connections. One is for jobs that came while
// their connection had no other job inside (lone jobs), the other for jobs that joined others of
// their connection. Both flows have equal shares, so that a connection that waits for each answer
// before its next call waits for one job of those that do not, however many connections those have.
// If more connections wait for each answer, the first flow's share is raised, so that none of them
// gets less than a connection of the other flow.
//
// Adding and taking cost O(log flows + log jobs of the flow).
class FairQueue {
 public:
  struct Flow;
  struct Job {
    JobId id = 0;
    int64_t cost_ns = 0;  // The expected time.
    double share = 1;     // The caller's share of the device's time; the default is 1.

    // Used by the queue itself.
    Flow* flow = nullptr;
    uint64_t connection = 0;
    bool is_lone = false;  // Its connection had no other job inside when it came.
    JobLinks<Job> waiting;
  };

  struct IsEarlier {
    bool operator()(const Flow* a, const Flow* b) const;
  };
  // A caller, one of the two flows within it, or a connection in one of those. Lives at least until
  // each job that entered has left.
  struct Flow {
    bool waits() const { return !waiting.empty() || !order.empty(); }

    Flow* parent = nullptr;
    int64_t tag_ns = 0;      // The position among the flows of the parent.
    uint64_t turn = 0;       // Breaks ties between equal tags: the older is first.
    double share = 1;        // Of a caller: the share of the last job that entered.
    int64_t waiting_ns = 0;  // The cost of the waiting jobs.
    int64_t inside = 0;      // Jobs that entered and have not left.

    LinkedJobs<Job, &Job::waiting> waiting;  // The jobs of a connection.

    // The child flows, those of them that wait, and the number of those that have jobs inside.
    using Order = std::set<Flow*, IsEarlier>;
    std::map<uint64_t, Flow> flows;
    Order order;
    using Spares = std::vector<Order::node_type>;
    Spares spares;  // Reused for the next children that wait.
    size_t busy_flows = 0;
    int64_t virtual_ns = 0;
  };

  // Queues the job behind earlier ones of its connection. Borrows it until Leave.
  void Enter(const FlowId& id, Job& job);
  void Leave(Job& job);

  // The job no longer waits, whether or not it was launched.
  void Remove(Job& job);

  bool empty() const { return all_.order.empty(); }
  // The next job. The queue must not be empty.
  Job& first() const { return FirstOf(all_); }

  // The job is launched and expected to take `cost_ns`. It waits, or has been removed.
  void Launch(Job& job, int64_t cost_ns);

  // The job had the device for this much longer than expected, or for less if negative.
  void Correct(Job& job, int64_t more_ns);

  // What precedes a further job of a connection.
  struct Ahead {
    // The cost of the jobs that would be launched first if no flow added any.
    int64_t waiting_ns = 0;
    // The cost of jobs that other flows are expected to add ahead: each flow that is ahead adds as
    // much again as it has waiting, limited by its turn, and all of them together at most
    // kMaxToCome times the cost that precedes the job in its own flow. If nothing precedes it
    // there, the job has the next turn of its flow, and nothing is added.
    int64_t to_come_ns = 0;
  };
  // Stops adding above `enough_ns`. Visits only flows that are ahead.
  Ahead AheadOf(const FlowId& id, int64_t enough_ns) const;

  // With a larger factor, a device with many callers is refused work for which it would have had
  // time.
  static constexpr int64_t kMaxToCome = 3;

  // The cost of all jobs that wait.
  int64_t waiting_ns() const { return all_.waiting_ns; }
  struct Inside {
    int64_t of_caller = 0;
    int64_t of_connection = 0;
  };
  // The numbers of jobs inside.
  Inside InsideOf(const FlowId& id) const;
  // The flows in memory. A connection counts twice if it is in both flows of its caller.
  size_t callers() const { return callers_.size(); }
  size_t connections() const;
  size_t spares() const;  // Places for flows that wait, kept for the next ones.

  // The maximum numbers of flows that are remembered without jobs, because of the time that they
  // had recently: of callers, and of connections whose caller has jobs.
  static constexpr size_t kMaxIdle = 1024;
  static constexpr size_t kMaxIdleConnections = 64;
  // A caller without jobs keeps this many connections of each kind, for their next products.
  static constexpr size_t kMaxKeptConnections = 16;

 private:
  // Caller, flow within it, connection.
  static constexpr size_t kLevels = 3;
  // The keys of the two flows within a caller.
  static constexpr uint64_t kLone = 0;
  static constexpr uint64_t kJoining = 1;

  // The flows that a further job would belong to; null if they are not in memory.
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
  Flow all_;  // The parent of the callers. Its own map of flows is empty, since callers are keyed
              // by name.
  uint64_t last_turn_ = 0;
};

// The maximum ratio of a job's real time to its expected time that is planned for.
inline constexpr int64_t kDoubt = 2;
// The maximum time for an answer to reach its caller when nothing goes wrong.
inline constexpr int64_t kAnswerNs = 1'000'000;

// The time to reserve so that a job meets its deadline even if the expectation is wrong.
inline int64_t SafeNs(int64_t expected_ns) { return kDoubt * expected_ns + kAnswerNs; }

// The time until the deadline; without a deadline, a time longer than any sum of predictions.
inline int64_t LeftNs(int64_t deadline_ns, int64_t now_ns) {
  return deadline_ns == kNoDeadlineNs ? kNoDeadlineNs : deadline_ns - now_ns;
}

// The jobs that wait for one device. Decides which is launched next.
//
// Jobs of normal priority precede those of low priority, but while both wait, low priority gets a
// twentieth of the device's time. Within a priority, callers take fair turns. A job's expected time
// is computed when the job comes and again at its launch, because meanwhile the device may have
// turned out slower than its measured rates. A job whose predicted time exceeds the time until its
// deadline is not launched at all. A job that meets its deadline only if the expectation is exact
// is doubtful, and waits until no safe job is left: under overload, time for a doubtful job is
// taken from a safe one. A job that found nothing waiting when it came was promised the device and
// is never doubtful.
//
// Has no clock and no lock.
class DeviceQueue {
 public:
  struct Job : FairQueue::Job {
    // The predicted time on the device. Only this decides whether the deadline can be met at all: a
    // job that is not run could never correct a wrong prediction.
    int64_t predicted_ns = 0;
    // The correction by recent jobs like this one; null: none.
    Correction* correction = nullptr;
    int64_t deadline_ns = kNoDeadlineNs;
    Priority priority = Priority::kNormal;
    bool is_promised = false;  // Nothing that waited was ahead of it when it came.

    // Used by the queue itself.
    bool is_doubtful = false;
    JobLinks<Job> doubtful;
    bool is_owed_for = false;  // Both priorities waited when it was launched.

    int64_t expected_ns() const { return ExpectedNs(predicted_ns, correction); }
  };

  // Queues the job. Borrows it until End or Remove.
  void Add(const FlowId& flow, Job& job);

  // Drops a waiting job.
  void Remove(Job& job);

  // The job to launch, which no longer waits, and the jobs that can no longer meet their deadlines,
  // which are removed.
  struct Choice {
    Job* next = nullptr;  // Null if no job is left.
    std::vector<Job*> too_late;
  };
  Choice TakeNext(int64_t now_ns);

  // A waiting job is launched together with the one from TakeNext.
  void TakeAlso(Job& job) { Launch(ClassOf(job), job); }

  bool empty() const;
  // The job that TakeNext would consider first. The queue must not be empty.
  const Job& first() { return NextClass()->first(); }

  // A launched job has ended after having the device for `ran_ns`.
  void End(Job& job, int64_t ran_ns);

  // The expected time of the jobs that would be launched before a further job.
  FairQueue::Ahead AheadOf(const FlowId& flow, Priority priority, int64_t enough_ns) const;

  // The expected time of all waiting jobs.
  int64_t waiting_ns() const;
  // Jobs that wait or run.
  FairQueue::Inside InsideOf(const FlowId& flow) const;

  // If both priorities wait, low priority gets 1/kLowPart of the device's time.
  static constexpr int64_t kLowPart = 20;

 private:
  struct Class {
    FairQueue fair;
    LinkedJobs<Job, &Job::doubtful> doubtful;  // Wait until `fair` is empty.
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
  int64_t owed_to_low_ns_ = 0;  // For the time that normal priority had while low priority waited.
};

// Which flows have short products. The length of the shortest product that another flow might send
// limits how much work a device may be given in advance.
//
// Has no clock and no lock. Remembers the two flows with the shortest products, so that for any
// flow there is another one.
class LightFlows {
 public:
  // How long a flow's shortest product counts.
  static constexpr int64_t kMemoryNs = 10'000'000'000;

  // A job of the flow has come, with a predicted time of `predicted_ns`.
  void Add(const FlowId& flow, int64_t predicted_ns, int64_t now_ns);

  // The smallest predicted time among recent jobs of other flows, or the largest number if there
  // were none.
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
