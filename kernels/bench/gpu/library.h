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

// A library's fastest implementation of one problem.
class Opponent {
 public:
  virtual ~Opponent() = default;
  // Notes for the report: "best of 9", "D f16".
  virtual std::string how() const = 0;
  // Enqueues the product of a set of operands on the device's stream.
  virtual absl::Status Multiply(int set) = 0;
};

class Library {
 public:
  virtual ~Library() = default;
  virtual std::string name() const = 0;     // "cuBLASLt"
  virtual std::string version() const = 0;  // "13.1.0"

  // Tries the library's implementations of the problem and keeps the fastest. May write D. Device
  // and operands must outlive the opponent. Errors: Unimplemented if the library has no such
  // product.
  virtual absl::StatusOr<std::unique_ptr<Opponent>> Prepare(Device& device,
                                                            const OperandSets& operands) = 0;
};

}  // namespace gemmd::bench
