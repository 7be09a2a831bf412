// SPDX-License-Identifier: Apache-2.0
//
// Jobs by id and by deadline. Neither table locks; callers do. The jobs themselves are linked, so
// that adding one allocates nothing while the caller's lock is held.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "server/device/device.h"

namespace gemmd {

// DeadlineHeap's place of a job that is not in it.
inline constexpr size_t kNotInHeap = std::numeric_limits<size_t>::max();

// Owns jobs and finds them by their ids. `kNext` links the jobs of one slot.
template <typename Job, Job* Job::*kNext>
class JobTable {
 public:
  JobTable() = default;
  JobTable(const JobTable&) = delete;
  JobTable& operator=(const JobTable&) = delete;
  ~JobTable() {
    for (Job* first : slots_) {
      while (first != nullptr) Take(*first, first);
    }
  }

  // Of several jobs with one id, Find gives the last.
  void Add(std::unique_ptr<Job> job) {
    Job*& first = SlotOf(job->id);
    (*job).*kNext = first;
    first = job.release();
  }

  // Null if there is none.
  Job* Find(JobId id) {
    Job* job = SlotOf(id);
    while (job != nullptr && job->id != id) job = job->*kNext;
    return job;
  }

  // Removes a job of the table.
  std::unique_ptr<Job> Take(Job& job) { return Take(job, SlotOf(job.id)); }

  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (Job* const first : slots_) {
      for (Job* job = first; job != nullptr; job = job->*kNext) visit(*job);
    }
  }

 private:
  // Ids ascend, so the slots fill evenly.
  static constexpr size_t kSlots = 4096;

  Job*& SlotOf(JobId id) { return slots_[id % kSlots]; }
  static std::unique_ptr<Job> Take(Job& job, Job*& first) {
    Job** link = &first;
    while (*link != &job) link = &((**link).*kNext);
    *link = job.*kNext;
    job.*kNext = nullptr;
    return std::unique_ptr<Job>(&job);
  }

  std::vector<Job*> slots_ = std::vector<Job*>(kSlots);
};

// Jobs in the order of their deadlines: a binary heap. `kPlace` is a job's place in it. Borrows the
// jobs until Remove.
template <typename Job, size_t Job::*kPlace>
class DeadlineHeap {
 public:
  DeadlineHeap() { jobs_.reserve(kReserved); }

  // Null if there is none.
  Job* first() const { return jobs_.empty() ? nullptr : jobs_.front(); }

  // Allocates only if there have never been as many.
  void Add(Job& job) {
    assert(job.*kPlace == kNotInHeap);
    jobs_.push_back(&job);
    Rise(jobs_.size() - 1, job);
  }

  // No effect if it is not in the heap.
  void Remove(Job& job) {
    const size_t place = job.*kPlace;
    if (place == kNotInHeap) return;
    job.*kPlace = kNotInHeap;
    Job& last = *jobs_.back();
    jobs_.pop_back();
    if (&last == &job) return;
    // The last job takes its place, and moves from there to where it belongs.
    Rise(place, last);
    Sink(last.*kPlace, last);
  }

 private:
  static constexpr size_t kReserved = 1024;

  static bool IsEarlier(const Job& a, const Job& b) {
    return a.deadline_ns != b.deadline_ns ? a.deadline_ns < b.deadline_ns : a.id < b.id;
  }
  void Put(size_t place, Job& job) {
    jobs_[place] = &job;
    job.*kPlace = place;
  }
  void Rise(size_t place, Job& job) {
    for (; place > 0; place = (place - 1) / 2) {
      Job& above = *jobs_[(place - 1) / 2];
      if (!IsEarlier(job, above)) break;
      Put(place, above);
    }
    Put(place, job);
  }
  void Sink(size_t place, Job& job) {
    while (2 * place + 1 < jobs_.size()) {
      size_t below = 2 * place + 1;
      if (below + 1 < jobs_.size() && IsEarlier(*jobs_[below + 1], *jobs_[below])) ++below;
      if (!IsEarlier(*jobs_[below], job)) break;
      Put(place, *jobs_[below]);
      place = below;
    }
    Put(place, job);
  }

  std::vector<Job*> jobs_;
};

}  // namespace gemmd
