// SPDX-License-Identifier: Apache-2.0
//
// Random numbers and random operands for trials and timing: standard normal values in float types,
// uniform over the whole range in integer types and bits. Zeros would make products look faster
// than they are.
#pragma once

#include <cstdint>
#include <string>

#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// Random numbers that are reproducible on every platform: the standard library's distributions
// differ between implementations.
//
// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

  // In (0, 1].
  double Unit() { return static_cast<double>((Next() >> 11) + 1) * 0x1p-53; }

 private:
  uint64_t state_;
};

// `count` lines of `line_length` packed elements. The same seed gives the same bytes on every
// platform.
std::string RandomLines(v1::ElementType type, int64_t line_length, int64_t count, uint64_t seed);

}  // namespace gemmd
