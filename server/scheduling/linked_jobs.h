// SPDX-License-Identifier: Apache-2.0
//
// Lists of jobs that link themselves, so that a job that waits allocates nothing.
#pragma once

#include <cassert>
#include <cstddef>

namespace gemmd {

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

}  // namespace gemmd
