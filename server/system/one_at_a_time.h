// SPDX-License-Identifier: Apache-2.0
//
// Runs actions that several threads cause, one at a time and without a lock held.
#pragma once

#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/system/mutex.h"

namespace gemmd {

class OneAtATime {
 public:
  // Runs act(*decide()) until `decide` returns nullopt. `decide` is called with the lock held. If
  // another thread is here, returns at once: that thread decides again after its own action, and so
  // sees whatever this one changed under the lock before. Always give the same lock.
  template <typename Decide, typename Act>
  void Run(Mutex& mutex, const Decide& decide, const Act& act) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (bool is_first = true;; is_first = false) {
      decltype(decide()) action;
      {
        MutexLock lock(&mutex);
        if (is_first && std::exchange(is_running_, true)) return;
        action = decide();
        is_running_ = action.has_value();
      }
      if (!action) return;
      act(*action);
    }
  }

 private:
  bool is_running_ = false;  // Guarded by the lock that Run is given.
};

}  // namespace gemmd
