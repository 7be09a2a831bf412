// SPDX-License-Identifier: Apache-2.0
//
// Answers that were made before, up to a number of bytes: those that were asked for longest ago go
// first.
#pragma once

#include <grpcpp/support/slice.h>

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "server/system/mutex.h"

namespace gemmd {

// Which fragment: an instruction's position, an operand's number, a selector.
using FragmentKey = std::tuple<size_t, int, int>;

class FragmentCache {
 public:
  explicit FragmentCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Threads: any.
  std::optional<grpc::Slice> Find(const FragmentKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps the answer, if it is not there yet and alone is within the bound.
  void Add(const FragmentKey& key, grpc::Slice answer) ABSL_LOCKS_EXCLUDED(mutex_);
  size_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    FragmentKey key;
    grpc::Slice answer;
  };
  using Entries = std::list<Entry>;

  const size_t max_bytes_;
  mutable Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);  // The one asked for last comes first.
  std::map<FragmentKey, Entries::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemmd
