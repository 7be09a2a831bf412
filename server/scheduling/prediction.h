// SPDX-License-Identifier: Apache-2.0
//
// Predicted times of products, corrected by what products of their kind took.
//
// Predictions rest on rates of a device that does nothing else (kernels/select.h). Where it shares
// a machine, where clocks are low or where a library knows a shape badly, products take another
// time, and the next ones of their kind are then expected to do so too. The choice of a kernel does
// not rest on this: the same request gives the same bits on the same server.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/problem.h"
#include "server/device/device.h"

namespace gemmd {

// Kinds of products whose predictions are wrong for the same reasons.
enum class ShapeClass : uint8_t {
  kNoProduct,  // Nothing is multiplied.
  kSmall,      // One matrix that takes about as long as starting it.
  kBatch,      // Many such matrices.
  kSkinny,     // Few rows or columns.
  kLarge,
};
inline constexpr size_t kShapeClasses = 5;

ShapeClass ShapeClassOf(const Problem& problem);

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
