// SPDX-License-Identifier: Apache-2.0
//
// How long products take: the one place where admission, deadlines, fair turns and joining ask.
//
// A product's time is predicted once, together with the choice of its kernel, from rates that were
// measured on a device that does nothing else (kernels/select.h); the product keeps it. Where a
// device shares a machine, where clocks are low or where a library knows a shape badly, products
// take another time: what those of the same kernel and shape class took corrects the prediction
// whenever somebody asks. The choice of a kernel does not rest on that: the same request has the
// same kernel on the same server.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "kernels/kernel.h"
#include "kernels/problem.h"
#include "kernels/select.h"
#include "server/device/device.h"
#include "server/system/mutex.h"

namespace gemmd {

// The kernels that were chosen for the problems that a device had lately, with the predicted times.
// Most products are like one of those, and to ask every row of a catalogue takes longer than to
// compute a small one.
//
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
  struct Choice {
    const Kernel* kernel = nullptr;  // Null if there is none.
    PredictedTime predicted;
  };

  // Predicts the time of a choice that has a kernel.
  static Choice Make(const Kernel* kernel, const Problem& problem, const DeviceProfile& profile);

  // What `choose` gave for the same question, or else what it gives now. A choice of null is not
  // remembered.
  Choice Find(const Question& question, absl::FunctionRef<Choice()> choose)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // So many questions are remembered at most; one takes the place of another with the same hash.
  static constexpr size_t kPlaces = 64;

 private:
  struct Place {
    Question question;
    Choice choice;
  };

  Mutex mutex_;
  std::array<Place, kPlaces> places_ ABSL_GUARDED_BY(mutex_);
};

// What products of one kernel and shape class lately took on a device over what was predicted.
//
// Threads: any; nothing waits. Two observations at once may count as one.
class Correction {
 public:
  // The most that a prediction is corrected by, as a factor and its inverse.
  static constexpr double kMax = 16;

  double factor() const { return factor_.load(std::memory_order_relaxed); }

  // A product has taken so long. One product moves the factor a part of the way, and a product that
  // took very long moves it no further than one that took four times as long as expected. One that
  // is not whole was given up after that time, and says no more than that it takes longer.
  void Observe(int64_t predicted_ns, int64_t taken_ns, bool is_whole);

 private:
  std::atomic<double> factor_ = 1;
};

// A prediction times the factor of its correction, if there is one; at most 2^62.
int64_t ExpectedNs(int64_t predicted_ns, const Correction* correction);

// Those of one device: nothing that peers send makes them grow.
class Corrections {
 public:
  explicit Corrections(const Device& device);

  // Lives as long as this. Null for a kernel that is not of the device's catalogue.
  Correction* Find(const Kernel& kernel, const Problem& problem);

 private:
  // By the position of the kernel and the class.
  std::vector<std::array<Correction, kShapeClasses>> rows_;
};

}  // namespace gemmd
