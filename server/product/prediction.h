// SPDX-License-Identifier: Apache-2.0
//
// How long products take. Admission, deadlines, fair turns and joining all use these predictions.
//
// The time of a product is predicted once, when its kernel is chosen, from rates measured on the
// idle device (kernels/select.h), and kept in the product. The real time may differ, for example if
// the machine is shared, if clocks are low, or if a library handles a shape badly. So each use of
// the prediction corrects it by the times that recent products of the same kernel and shape class
// took. The choice of a kernel does not depend on the correction: the same request gets the same
// kernel on the same server.
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

// A cache of the kernels that a device chose for recent problems, with the predicted times. Most
// products repeat a recent problem, and evaluating every row of a catalogue takes longer than
// computing a small product.
//
// For one device, whose catalogue and profile are constant. Threads: any.
class KernelChoices {
 public:
  // Everything that a choice depends on.
  struct Question {
    Problem problem;
    // The kernel that was requested or whose bits are required; null if any kernel may run.
    const Kernel* kernel = nullptr;
    bool deterministic = false;
    bool batch_invariant = false;

    friend bool operator==(const Question&, const Question&) = default;
  };
  struct Choice {
    const Kernel* kernel = nullptr;  // Null if no kernel fits.
    PredictedTime predicted;
  };

  // A choice with the time predicted for its kernel.
  static Choice Make(const Kernel* kernel, const Problem& problem, const DeviceProfile& profile);

  // The cached choice for the question, or else the result of `choose`. A null choice is not
  // cached.
  Choice Find(const Question& question, absl::FunctionRef<Choice()> choose)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The size of the cache. A question replaces another one with the same hash.
  static constexpr size_t kPlaces = 64;

 private:
  struct Place {
    Question question;
    Choice choice;
  };

  Mutex mutex_;
  std::array<Place, kPlaces> places_ ABSL_GUARDED_BY(mutex_);
};

// The ratio of the times that recent products of one kernel and shape class took on a device to
// their predictions.
//
// Threads: any, without waiting. Of two simultaneous observations one may be lost.
class Correction {
 public:
  // The maximum correction, as a factor and as its inverse.
  static constexpr double kMax = 16;

  double factor() const { return factor_.load(std::memory_order_relaxed); }

  // Records the time that a product took. One product moves the factor only part of the way, and a
  // very slow product moves it no further than one that took four times its expected time. If
  // `is_whole` is false the product was aborted after `taken_ns`, which only shows that it takes
  // longer.
  void Observe(int64_t predicted_ns, int64_t taken_ns, bool is_whole);

 private:
  std::atomic<double> factor_ = 1;
};

// The prediction times its correction factor, if there is one; at most 2^62.
int64_t ExpectedNs(int64_t predicted_ns, const Correction* correction);

// The corrections of one device. Their number is fixed, so requests cannot make them grow.
class Corrections {
 public:
  explicit Corrections(const Device& device);

  // The correction lives as long as this object. Null for a kernel that is not in the device's
  // catalogue.
  Correction* Find(const Kernel& kernel, const Problem& problem);

 private:
  // By the kernel's index and the shape class.
  std::vector<std::array<Correction, kShapeClasses>> rows_;
};

}  // namespace gemmd
