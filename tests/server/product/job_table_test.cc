// SPDX-License-Identifier: Apache-2.0
//
// The table and the heap of jobs beside a map and a set.
#include "server/product/job_table.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

struct Numbered {
  JobId id = 0;
  int64_t deadline_ns = 0;
  Numbered* next = nullptr;
  size_t place = kNotInHeap;
};

TEST(JobTableTest, FindsWhatWasAddedUntilItIsTaken) {
  RandomSource random;
  JobTable<Numbered, &Numbered::next> table;
  std::map<JobId, Numbered*> expected;
  JobId last_id = 0;
  for (int i = 0; i < 50'000; ++i) {
    if (random.Between(0, 4) < 3 || expected.empty()) {
      auto job = std::make_unique<Numbered>();
      // Some ids share a slot.
      last_id += 1 + (random.Between(0, 3) == 0 ? 4095 : 0);
      job->id = last_id;
      expected[last_id] = job.get();
      table.Add(std::move(job));
    } else {
      const auto any = expected.lower_bound(
          static_cast<JobId>(random.Between(1, static_cast<int64_t>(expected.rbegin()->first))));
      ASSERT_EQ(table.Take(*any->second).get(), any->second);
      ASSERT_EQ(table.Find(any->first), nullptr);
      expected.erase(any);
    }
  }
  for (const auto& [id, job] : expected) ASSERT_EQ(table.Find(id), job);
  std::set<JobId> seen;
  table.ForEach([&seen](const Numbered& job) { seen.insert(job.id); });
  EXPECT_EQ(seen.size(), expected.size());
}

TEST(DeadlineHeapTest, IsInTheOrderOfDeadlinesAndThenOfIds) {
  RandomSource random;
  std::vector<Numbered> jobs(1000);
  DeadlineHeap<Numbered, &Numbered::place> heap;
  std::set<std::pair<int64_t, JobId>> expected;
  EXPECT_EQ(heap.first(), nullptr);
  for (int i = 0; i < 100'000; ++i) {
    const auto any = static_cast<size_t>(random.Between(0, 999));
    Numbered& job = jobs[any];
    if (job.place == kNotInHeap) {
      job.id = any;
      job.deadline_ns = random.Between(0, 99);
      heap.Add(job);
      expected.emplace(job.deadline_ns, job.id);
    } else {
      // Often the first one.
      Numbered& removed = random.Flip() ? job : *heap.first();
      heap.Remove(removed);
      expected.erase({removed.deadline_ns, removed.id});
      heap.Remove(removed);  // No effect.
    }
    ASSERT_EQ(heap.first() == nullptr, expected.empty());
    if (heap.first() == nullptr) continue;
    ASSERT_EQ(heap.first()->id, expected.begin()->second);
  }
}

}  // namespace
}  // namespace gemmd
