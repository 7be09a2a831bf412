// SPDX-License-Identifier: Apache-2.0
//
// How work that runs is told to end early.
#pragma once

#include <atomic>

namespace gemmd {

// A flag that becomes true, from any thread, once nobody wants the work any more; null: somebody
// always does.
using AbortFlag = const std::atomic<bool>*;

inline bool IsSet(AbortFlag abort) {
  return abort != nullptr && abort->load(std::memory_order_relaxed);
}

}  // namespace gemmd
