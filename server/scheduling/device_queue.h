// SPDX-License-Identifier: Apache-2.0
//
// What waits for one device, and which of it is launched next.
//
// Jobs of normal priority go before those of low priority, but where both wait, low priority has a
// twentieth of the device's time. Within a priority the callers take fair turns. What a job is
// expected to take is its prediction, corrected by how those of its caller's last jobs were: a
// machine may be slower than it was when it was measured. A job that by its prediction can no
// longer be in time is not launched at all. One that is in time only if what is expected comes true
// to the point waits until there is no safe one: under overload, time for a doubtful job is time
// taken from a safe one. A job to which the device was promised at once is not doubted.
//
// Knows no clock and no lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "server/scheduling/fair_queue.h"
#include "server/scheduling/priority.h"
#include "server/system/clock.h"

namespace gemmd {

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

class DeviceQueue {
 public:
  struct Job : FairQueue::Job {
    // The predicted time on the device. Whether the job can be in time at all rests on this alone:
    // a job that is not run corrects no prediction.
    int64_t predicted_ns = 0;
    int64_t expected_ns = 0;  // By what jobs like this one took; 0: as predicted.
    int64_t deadline_ns = kNoDeadlineNs;
    Priority priority = Priority::kNormal;
    bool is_promised = false;  // Nothing that waited was ahead of it when it came.

    // The queue's own.
    bool is_doubtful = false;
    JobLinks<Job> doubtful;
    bool is_owed_for = false;  // Both priorities waited when it was launched.

    // What the caller's pace multiplies.
    int64_t basis_ns() const { return expected_ns > 0 ? expected_ns : predicted_ns; }
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

  // A job that was launched has ended, and had the device for `ran_ns`; it was aborted where it is
  // not whole.
  void End(Job& job, int64_t ran_ns, bool is_whole);

  // The time that a further job of the connection is expected to take: its predicted time, by how
  // the predictions of its last jobs were.
  int64_t ExpectedNs(const FlowId& flow, Priority priority, int64_t predicted_ns) const;

  // The expected time of what would be launched before a further job.
  FairQueue::Ahead AheadOf(const FlowId& flow, Priority priority, int64_t enough_ns) const;
  int64_t AheadNs(const FlowId& flow, Priority priority, int64_t enough_ns) const {
    return AheadOf(flow, priority, enough_ns).waiting_ns;
  }

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
  static void LearnPace(const Job& job, int64_t ran_ns, bool is_whole);
  static void Unlist(Class& of, Job& job);
  static void SetAside(Class& of, Job& job);
  void Launch(Class& of, Job& job);
  void Owe(const Job& job, int64_t had_ns);

  std::array<Class, kPriorities> classes_;
  int64_t owed_to_low_ns_ = 0;  // For the time that normal priority had while low waited.
};

}  // namespace gemmd
