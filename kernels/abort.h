// SPDX-License-Identifier: Apache-2.0
//
// How work that runs is told to end early.
#pragma once

#include <atomic>
#include <cstdint>

namespace gemmd {

// A flag that becomes true, from any thread, once nobody wants the work any more; null: somebody
// always does.
using AbortFlag = const std::atomic<bool>*;

inline bool IsSet(AbortFlag abort) {
  return abort != nullptr && abort->load(std::memory_order_relaxed);
}

// The same for a launch on a GPU, in memory that the GPU reads: nobody wants the work any more once
// the word has the value. Null: somebody always does.
struct AbortWord {
  const uint64_t* word = nullptr;
  uint64_t value = 0;
};

}  // namespace gemmd
