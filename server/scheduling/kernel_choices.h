// SPDX-License-Identifier: Apache-2.0
//
// The kernels that were chosen for the problems that a device had lately. Most products are like
// one of those, and to ask every row of a catalogue takes longer than to compute a small one.
#pragma once

#include <array>
#include <cstddef>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "kernels/kernel.h"
#include "kernels/problem.h"
#include "server/system/mutex.h"

namespace gemmd {

// For one device, whose catalogue and profile stay as they are. Threads: any.
class KernelChoices {
 public:
  // All that a choice depends on.
  struct Question {
    Problem problem;
    // The one that was asked for, or whose bits are wanted; null where it may be any.
    const Kernel* kernel = nullptr;
    bool deterministic = false;
    bool batch_invariant = false;

    friend bool operator==(const Question&, const Question&) = default;
  };

  // What `choose` gave for the same question, or else what it gives now. A choice of null is not
  // remembered.
  const Kernel* Find(const Question& question, absl::FunctionRef<const Kernel*()> choose)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // So many questions are remembered at most; one takes the place of another with the same hash.
  static constexpr size_t kPlaces = 64;

 private:
  struct Place {
    Question question;
    const Kernel* choice = nullptr;
  };

  Mutex mutex_;
  std::array<Place, kPlaces> places_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
