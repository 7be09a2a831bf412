// SPDX-License-Identifier: Apache-2.0
#include "server/device/held_bytes.h"

#include <sys/mman.h>

#include <cstdlib>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/system/mutex.h"
#include "server/system/resources.h"

namespace gemmd {
namespace {

constexpr int64_t kLargeBytes = int64_t{1} << 20;

constexpr size_t kHugePage = size_t{2} << 20;

// A mapping is reused only for requests of at least half its size, so that accounting stays close
// to actual use.
constexpr size_t kMaxWaste = 2;

struct Mapping {
  std::byte* memory = nullptr;
  size_t bytes = 0;
};

Mapping Map(size_t bytes, SharedMemory* shared) {
  if (shared != nullptr) {
    constexpr size_t kUnit = SharedMemory::kMinBytes;
    const size_t all = (bytes + kUnit - 1) / kUnit * kUnit;
    std::byte* const memory = shared->Take(static_cast<int64_t>(all));
    if (memory != nullptr) return {memory, all};
  }
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {};
  if (!HasSpareAddresses()) {
    munmap(memory, bytes);
    return {};
  }
  // Without huge pages, small pages are used.
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  return {static_cast<std::byte*>(memory), bytes};
}

}  // namespace

std::optional<HeldBytes> HeldBytes::Zeros(int64_t bytes) {
  if (bytes == 0) return HeldBytes();
  const auto size = static_cast<size_t>(bytes);
  // If malloc maps a new block, the zeros come from the system, and no byte is written twice.
  auto* const memory = static_cast<std::byte*>(std::calloc(size, 1));
  if (memory == nullptr) return std::nullopt;
  if (bytes >= kLargeBytes && !HasSpareAddresses()) {
    std::free(memory);
    return std::nullopt;
  }
  return HeldBytes({memory, size}, [memory] { std::free(memory); });
}

class WarmMemory::Kept {
 public:
  Kept(int64_t max_bytes, bool poisons_freed, SharedMemory* of)
      : shared(of), max_bytes_(static_cast<size_t>(max_bytes)), poisons_freed_(poisons_freed) {}
  ~Kept() { Cool(); }

  SharedMemory* const shared;

  // The shortest mapping that is long enough; empty if there is none.
  Mapping Find(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    is_cool_ = false;
    const auto found = free_.lower_bound(bytes);
    if (found == free_.end() || found->first / kMaxWaste > bytes) return {};
    const Mapping mapping = {found->second, found->first};
    free_.erase(found);
    bytes_ -= mapping.bytes;
    return mapping;
  }

  void Return(Mapping mapping) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (poisons_freed_) Poison({mapping.memory, mapping.bytes});
    std::vector<Mapping> surplus;
    {
      MutexLock lock(&mutex_);
      free_.emplace(mapping.bytes, mapping.memory);
      bytes_ += mapping.bytes;
      // Frees the shortest first, because they are the fastest to recreate.
      while (bytes_ > (is_cool_ ? 0 : max_bytes_)) {
        surplus.push_back({free_.begin()->second, free_.begin()->first});
        bytes_ -= free_.begin()->first;
        free_.erase(free_.begin());
      }
    }
    Unmap(surplus);
  }

  void Cool() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<Mapping> surplus;
    {
      MutexLock lock(&mutex_);
      for (const auto& [bytes, memory] : free_) surplus.push_back({memory, bytes});
      free_.clear();
      bytes_ = 0;
      is_cool_ = true;
    }
    Unmap(surplus);
  }

  int64_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    return static_cast<int64_t>(bytes_);
  }

 private:
  void Unmap(const std::vector<Mapping>& mappings) const {
    for (const Mapping& mapping : mappings) {
      if (shared != nullptr && shared->OffsetOf(mapping.memory)) {
        shared->GiveBack(mapping.memory, static_cast<int64_t>(mapping.bytes));
      } else {
        munmap(mapping.memory, mapping.bytes);
      }
    }
  }

  const size_t max_bytes_;
  const bool poisons_freed_;
  mutable Mutex mutex_;
  std::multimap<size_t, std::byte*> free_ ABSL_GUARDED_BY(mutex_);  // By size.
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_cool_ ABSL_GUARDED_BY(mutex_) = false;  // Cool was called, and nothing taken since.
};

WarmMemory::WarmMemory(int64_t max_kept_bytes, bool poisons_freed, SharedMemory* shared)
    : min_bytes_(shared != nullptr ? SharedMemory::kMinBytes : kMinBytes),
      kept_(std::make_shared<Kept>(max_kept_bytes, poisons_freed, shared)) {}

std::optional<HeldBytes> WarmMemory::Take(int64_t bytes, bool* is_new) {
  if (is_new != nullptr) *is_new = false;
  const auto size = static_cast<size_t>(bytes);
  if (size == 0) return HeldBytes();
  if (bytes < min_bytes_) {
    auto* const memory = static_cast<std::byte*>(::operator new(size, std::nothrow));
    if (memory == nullptr) return std::nullopt;
    return HeldBytes({memory, size}, [memory] { ::operator delete(memory); });
  }
  Mapping mapping = kept_->Find(size);
  if (mapping.memory == nullptr) {
    mapping = Map(size, kept_->shared);
    if (is_new != nullptr) *is_new = true;
  }
  if (mapping.memory == nullptr) return std::nullopt;
  return HeldBytes({mapping.memory, size}, [kept = kept_, mapping] { kept->Return(mapping); });
}

void WarmMemory::Cool() { kept_->Cool(); }
int64_t WarmMemory::kept_bytes() const { return kept_->bytes(); }

}  // namespace gemmd
