// SPDX-License-Identifier: Apache-2.0
//
// Objects whose memory is that of earlier ones that have ended. One thread begins a product and
// another one ends it, and malloc is slow where it frees what other threads have allocated.
#pragma once

#include <array>
#include <cstddef>
#include <new>

#include "absl/base/thread_annotations.h"
#include "server/system/mutex.h"

namespace gemmd {

// The base of a final class T.
template <typename T>
class Recycled {
 public:
  static void* operator new(size_t bytes) {
    void* const memory = Free().Take();
    return memory != nullptr ? memory : ::operator new(bytes);
  }
  static void operator delete(void* memory) {
    if (!Free().Add(memory)) ::operator delete(memory);
  }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kMaxKept = 0;  // It looks for uses of ended objects.
#else
  static constexpr size_t kMaxKept = 256;
#endif

  class List {
   public:
    // Null if there is none.
    void* Take() ABSL_LOCKS_EXCLUDED(mutex_) {
      MutexLock lock(&mutex_);
      return count_ > 0 ? all_[--count_] : nullptr;
    }

    // Returns false if there are enough.
    bool Add(void* memory) ABSL_LOCKS_EXCLUDED(mutex_) {
      MutexLock lock(&mutex_);
      if (count_ == all_.size()) return false;
      all_[count_++] = memory;
      return true;
    }

   private:
    Mutex mutex_;
    std::array<void*, kMaxKept> all_ ABSL_GUARDED_BY(mutex_) = {};
    size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  };

  static List& Free() {
    static auto* const list = new List();
    return *list;
  }
};

}  // namespace gemmd
