// SPDX-License-Identifier: Apache-2.0
//
// What is held against a device: kernels that gave wrong answers there, and whether it serves on.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "server/system/mutex.h"

namespace gemmd {

// Threads: any.
class DeviceTrust {
 public:
  // A kernel gave a wrong answer: it is quarantined. The second one takes the device out of
  // service. Returns whether this one did.
  bool AddWrongAnswer(const Kernel& kernel) ABSL_LOCKS_EXCLUDED(mutex_);

  // The kernels that the device is not given any more. Takes no lock while there are none.
  std::vector<const Kernel*> quarantined() const ABSL_LOCKS_EXCLUDED(mutex_);

  // OK, or why the device serves no longer.
  absl::Status status() const;

  int64_t wrong_answers() const { return wrong_answers_; }

  static constexpr int64_t kMostWrongAnswers = 1;

 private:
  std::atomic<int64_t> wrong_answers_ = 0;
  mutable Mutex mutex_;
  std::vector<const Kernel*> quarantined_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
