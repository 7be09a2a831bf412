// SPDX-License-Identifier: Apache-2.0
//
// A vendor's library as an opponent of the kernels.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/bench/gpu/device.h"
#include "kernels/bench/gpu/operand_sets.h"

namespace gemmd::bench {

// A library's fastest way of doing one problem.
class Opponent {
 public:
  virtual ~Opponent() = default;
  // What there is to know of it: "best of 9", "D f16".
  virtual std::string how() const = 0;
  // Puts the product of a set of operands on the device's stream.
  virtual absl::Status Multiply(int set) = 0;
};

class Library {
 public:
  virtual ~Library() = default;
  virtual std::string name() const = 0;     // "cuBLASLt"
  virtual std::string version() const = 0;  // "13.1.0"

  // Tries the library's ways of doing the problem and keeps the fastest. It may write D. Device and
  // operands outlive the opponent.
  // Errors: Unimplemented where the library has no such product.
  virtual absl::StatusOr<std::unique_ptr<Opponent>> Prepare(Device& device,
                                                            const OperandSets& operands) = 0;
};

}  // namespace gemmd::bench
