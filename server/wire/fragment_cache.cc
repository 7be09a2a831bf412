// SPDX-License-Identifier: Apache-2.0
#include "server/wire/fragment_cache.h"

#include <iterator>
#include <utility>

namespace gemmd {

std::optional<grpc::Slice> FragmentCache::Find(const FragmentKey& key) {
  MutexLock lock(&mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->answer;
}

void FragmentCache::Add(const FragmentKey& key, grpc::Slice answer) {
  if (answer.size() > max_bytes_) return;
  Entries dropped;  // Freed without the lock.
  MutexLock lock(&mutex_);
  if (by_key_.count(key) > 0) return;
  bytes_ += answer.size();
  entries_.push_front({key, std::move(answer)});
  by_key_[key] = entries_.begin();
  while (bytes_ > max_bytes_) {
    const auto oldest = std::prev(entries_.end());
    bytes_ -= oldest->answer.size();
    by_key_.erase(oldest->key);
    dropped.splice(dropped.begin(), entries_, oldest);
  }
}

size_t FragmentCache::bytes() const {
  MutexLock lock(&mutex_);
  return bytes_;
}

}  // namespace gemmd
