// SPDX-License-Identifier: Apache-2.0
//
// Random operands for recordings. The same seed gives the same numbers on every machine, since
// operands of earlier recordings must be found again.
#pragma once

#include <cstdint>
#include <random>

namespace gemmd {

class RandomNumbers {
 public:
  explicit RandomNumbers(uint64_t seed) : engine_(seed) {}

  uint64_t Bits() { return engine_(); }
  // Uniform, both ends included.
  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool Flip() { return (Bits() & 1) != 0; }
  double Normal() { return std::normal_distribution<double>()(engine_); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace gemmd
