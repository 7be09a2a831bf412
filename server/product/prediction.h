// SPDX-License-Identifier: Apache-2.0
//
// What is remembered of earlier products: the kernels that were chosen for their problems, and how
// long they took beside their predictions.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/problem.h"
#include "server/device/device.h"
#include "server/system/mutex.h"

namespace gemmd {

// The kernels that were chosen for the problems that a device had lately. Most products are like
// one of those, and to ask every row of a catalogue takes longer than to compute a small one.
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

// Predicted times of products, corrected by what products of their kind took.
//
// Predictions rest on rates of a device that does nothing else (kernels/select.h). Where it shares
// a machine, where clocks are low or where a library knows a shape badly, products take another
// time, and the next ones of their kind are then expected to do so too. The choice of a kernel does
// not rest on this: the same request has the same kernel on the same server.
//
// Threads: any; nothing waits.
class PredictionCorrection {
 public:
  // The most that a prediction is corrected by, as a factor and its inverse.
  static constexpr double kMost = 16;

  // One table for each device, of the kernels of its kind: nothing that peers send makes it grow.
  explicit PredictionCorrection(absl::Span<const ServedDevice> devices);

  // What products like this one have taken lately on the device of that index over what was
  // predicted: 1 where there were none, never more than kMost or less than 1 / kMost.
  double Factor(size_t device, const Kernel& kernel, const Problem& problem) const;

  // A prediction times that factor; at most 2^62.
  int64_t Correct(size_t device, const Kernel& kernel, const Problem& problem,
                  int64_t predicted_ns) const;

  // Tells what a product took whose time was predicted without a correction. One product moves the
  // factor a part of the way, and a product that took very long moves it no further than one that
  // took four times as long as expected.
  void Observe(size_t device, const Kernel& kernel, const Problem& problem, int64_t predicted_ns,
               int64_t taken_ns);

 private:
  // Binary logarithms of factors, by the position of the kernel and the class. Two observations at
  // once may count as one.
  using Row = std::array<std::atomic<float>, kShapeClasses>;

  std::atomic<float>* Find(size_t device, const Kernel& kernel, const Problem& problem);
  const std::atomic<float>* Find(size_t device, const Kernel& kernel, const Problem& problem) const;

  std::vector<std::vector<Row>> devices_;
};

}  // namespace gemmd
