// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/device_queue.h"

#include <algorithm>

namespace gemmd {
namespace {

constexpr size_t kNormal = static_cast<size_t>(Priority::kNormal);
constexpr size_t kLow = static_cast<size_t>(Priority::kLow);

// Shorter jobs take longer than predicted because of what surrounds them, and teach nothing about
// longer ones.
constexpr int64_t kShortestLearntNs = 1'000'000;
// More than this is an error of one kind of product, and not of the machine.
constexpr double kLeastPace = 0.25;
constexpr double kMostPace = 8;

int64_t CostNs(double pace, int64_t basis_ns) {
  return static_cast<int64_t>(pace * static_cast<double>(basis_ns));
}

}  // namespace

void DeviceQueue::Add(const FlowId& flow, Job& job) {
  job.cost_ns = ExpectedNs(flow, job.priority, job.basis_ns());
  ClassOf(job).fair.Enter(flow, job);
}

int64_t DeviceQueue::ExpectedNs(const FlowId& flow, Priority priority, int64_t predicted_ns) const {
  return CostNs(Of(priority).fair.PaceOf(flow), predicted_ns);
}

void DeviceQueue::Remove(Job& job) {
  Class& of = ClassOf(job);
  Unlist(of, job);
  of.fair.Leave(job);
}

void DeviceQueue::Unlist(Class& of, Job& job) {
  of.fair.Remove(job);
  if (of.doubtful.Remove(job)) of.doubtful_ns -= job.cost_ns;
}

void DeviceQueue::LearnPace(const Job& job, int64_t ran_ns, bool is_whole) {
  if (ran_ns < kShortestLearntNs || job.basis_ns() <= 0) return;
  const double seen = std::clamp(static_cast<double>(ran_ns) / static_cast<double>(job.basis_ns()),
                                 kLeastPace, kMostPace);
  FairQueue::LearnPace(job, seen, is_whole);
}

void DeviceQueue::SetAside(Class& of, Job& job) {
  Unlist(of, job);
  job.is_doubtful = true;
  of.doubtful.Insert(job);
  of.doubtful_ns += job.cost_ns;
}

bool DeviceQueue::empty() const { return classes_[kNormal].empty() && classes_[kLow].empty(); }

// The class whose turn it is; null where nothing waits.
DeviceQueue::Class* DeviceQueue::NextClass() {
  Class& normal = classes_[kNormal];
  Class& low = classes_[kLow];
  if (low.empty()) {
    owed_to_low_ns_ = 0;
    return normal.empty() ? nullptr : &normal;
  }
  const bool is_turn_of_low = normal.empty() || owed_to_low_ns_ >= low.first().cost_ns;
  return is_turn_of_low ? &low : &normal;
}

DeviceQueue::Choice DeviceQueue::TakeNext(int64_t now_ns) {
  Choice choice;
  while (Class* const of = NextClass()) {
    Job& job = of->first();
    const int64_t left_ns = LeftNs(job.deadline_ns, now_ns);
    if (left_ns <= 0 || left_ns < job.predicted_ns) {
      Remove(job);
      choice.too_late.push_back(&job);
    } else if (left_ns < SafeNs(job.cost_ns) && !job.is_doubtful && !job.is_promised) {
      SetAside(*of, job);
    } else {
      Launch(*of, job);
      choice.next = &job;
      break;
    }
  }
  return choice;
}

void DeviceQueue::Launch(Class& of, Job& job) {
  if (of.doubtful.Remove(job)) of.doubtful_ns -= job.cost_ns;
  // Since it came, its caller's jobs may have turned out to take longer or shorter than expected.
  of.fair.Launch(job, CostNs(job.flow->pace, job.basis_ns()));
  const Class& others = classes_[job.priority == Priority::kNormal ? kLow : kNormal];
  job.is_owed_for = !others.empty();
  Owe(job, job.cost_ns);
}

// The job had the device for so long while the other priority waited.
void DeviceQueue::Owe(const Job& job, int64_t had_ns) {
  if (!job.is_owed_for) return;
  owed_to_low_ns_ += job.priority == Priority::kNormal ? had_ns / (kLowPart - 1) : -had_ns;
}

void DeviceQueue::End(Job& job, int64_t ran_ns, bool is_whole) {
  FairQueue& fair = ClassOf(job).fair;
  LearnPace(job, ran_ns, is_whole);
  fair.Correct(job, ran_ns - job.cost_ns);
  // What is owed is forgotten where no job of low priority waits.
  if (!classes_[kLow].empty()) Owe(job, ran_ns - job.cost_ns);
  fair.Leave(job);
}

FairQueue::Ahead DeviceQueue::AheadOf(const FlowId& flow, Priority priority,
                                      int64_t enough_ns) const {
  FairQueue::Ahead ahead = Of(priority).fair.AheadOf(flow, enough_ns);
  if (priority == Priority::kLow) ahead.waiting_ns += classes_[kNormal].waiting_ns();
  return ahead;
}

int64_t DeviceQueue::waiting_ns() const {
  return classes_[kNormal].waiting_ns() + classes_[kLow].waiting_ns();
}

FairQueue::Inside DeviceQueue::InsideOf(const FlowId& flow) const {
  const FairQueue::Inside normal = classes_[kNormal].fair.InsideOf(flow);
  const FairQueue::Inside low = classes_[kLow].fair.InsideOf(flow);
  return {.of_caller = normal.of_caller + low.of_caller,
          .of_connection = normal.of_connection + low.of_connection};
}

}  // namespace gemmd
