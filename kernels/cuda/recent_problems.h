// SPDX-License-Identifier: Apache-2.0
//
// A cache of values computed for the problems of recent launches. It holds kCapacity problems; the
// oldest is evicted first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/row.h"
#include "kernels/problem.h"

namespace gemmd {

// Everything that a launch depends on except addresses; the caller's problem unchanged.
struct LaunchKey {
  const CudaRow* row = nullptr;
  int gpu = 0;
  int multiprocessors = 0;
  const Problem* problem = nullptr;
};

// Values never change. Threads: any.
template <typename Value>
class RecentProblems {
 public:
  static constexpr size_t kCapacity = 256;

  // Null if there is none.
  std::shared_ptr<const Value> Find(const LaunchKey& key) const {
    const absl::MutexLock lock(&mutex_);
    for (const Entry& entry : sets_[SetOf(*key.problem)].entries) {
      if (entry.Is(key)) return entry.value;
    }
    return nullptr;
  }

  void Keep(const LaunchKey& key, std::shared_ptr<const Value> value) {
    Entry entry = {key.row, key.gpu, key.multiprocessors, *key.problem, std::move(value)};
    const absl::MutexLock lock(&mutex_);
    Set& set = sets_[SetOf(*key.problem)];
    std::swap(set.entries[set.next],
              entry);  // The evicted value is destroyed after the lock is released.
    set.next = (set.next + 1) % kWays;
  }

 private:
  // Set-associative: a problem belongs to one set, so look-up compares few entries.
  static constexpr size_t kWays = 4;

  struct Entry {
    const CudaRow* row = nullptr;
    int gpu = 0;
    int multiprocessors = 0;
    Problem problem;
    std::shared_ptr<const Value> value;

    bool Is(const LaunchKey& key) const {
      return row == key.row && gpu == key.gpu && multiprocessors == key.multiprocessors &&
             problem == *key.problem;
    }
  };
  struct Set {
    std::array<Entry, kWays> entries;
    size_t next = 0;
  };

  static size_t SetOf(const Problem& problem) {
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
    uint64_t mixed = 0;
    for (const int64_t value :
         {problem.m, problem.n, problem.k, problem.batch, problem.a.leading_dimension,
          problem.b.leading_dimension, problem.d.leading_dimension}) {
      mixed = (mixed ^ static_cast<uint64_t>(value)) * kOdd;
      mixed ^= mixed >> 32;
    }
    return mixed % (kCapacity / kWays);
  }

  mutable absl::Mutex mutex_;
  std::array<Set, kCapacity / kWays> sets_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
