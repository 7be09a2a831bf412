// SPDX-License-Identifier: Apache-2.0
//
// One element of D of one instruction on one chip, for tests of arithmetic: everything around it is
// zero, and the elements of B that a sparse A does not use are NaN.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/mma/chip.h"
#include "kernels/mma/instruction.h"
#include "kernels/sim/unit.h"

namespace gemmd {

// Raw bits. Product i is the i-th along k, or the i-th kept element of a sparse A; missing ones are
// zero.
struct Dot {
  std::vector<uint64_t> a;
  std::vector<uint64_t> b;
  uint64_t c = 0;
};

// Numbers, for instructions of several types.
struct DotValues {
  std::vector<double> a;
  std::vector<double> b;
  double c = 0;
};

class DotRig {
 public:
  DotRig(std::string_view name, mma::Chip chip);

  const mma::Instruction& instruction() const { return unit_.instruction(); }
  // Products of one element.
  size_t depth() const { return depth_; }

  // The element of D. The dot must have at most `depth` products.
  uint64_t Multiply(const Dot& dot);

  // The dot in the instruction's types; null if it is too long or a value is not exact.
  std::optional<Dot> Encoded(const DotValues& values) const;

 private:
  void KeepElements();

  sim::MatrixUnit unit_;
  size_t depth_;
  std::vector<int> a_k_;  // Empty where dense.
  std::vector<uint64_t> a_;
  std::vector<uint64_t> b_;
  std::vector<uint64_t> c_;
  std::vector<uint64_t> d_;
};

// The dot with its products rotated by `count` places, out of `depth`.
Dot Rotated(const Dot& dot, size_t depth, size_t count);

// The dot with the signs of A and C changed, and the corresponding result of a fused sum: zeros and
// NaN do not change.
Dot Negated(const mma::Instruction& instruction, Dot dot);
uint64_t NegatedResult(const mma::Instruction& instruction, uint64_t d);

// "P01 with mma.m16n8k16.f32.f16.f16.f32", for messages.
std::string Describe(const DotRig& rig, std::string_view id);

}  // namespace gemmd
