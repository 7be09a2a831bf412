// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/random_matrix.h"

#include <cmath>
#include <numbers>
#include <utility>

#include "client/gemmctl/element_codec.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

// SplitMix64: the standard library's distributions differ between implementations.
// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
class Generator {
 public:
  explicit Generator(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

  // In (0, 1].
  double Unit() { return static_cast<double>((Next() >> 11) + 1) * 0x1p-53; }

  // Box and Muller's pairs, one value at a time.
  double Normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2 * std::log(Unit()));
    const double angle = 2 * std::numbers::pi * Unit();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

bool IsInteger(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_S8:
    case v1::ELEMENT_TYPE_U8:
    case v1::ELEMENT_TYPE_S4:
    case v1::ELEMENT_TYPE_U4:
    case v1::ELEMENT_TYPE_B1:
    case v1::ELEMENT_TYPE_S32: return true;
    default: return false;
  }
}

}  // namespace

std::string RandomLines(v1::ElementType type, int64_t line_length, int64_t count, uint64_t seed) {
  const int bits = ElementBits(type);
  const size_t line_bytes = (static_cast<size_t>(line_length) * static_cast<size_t>(bits) + 7) / 8;
  std::string data(line_bytes * static_cast<size_t>(count), '\0');
  const bool is_integer = IsInteger(type);
  Generator generator(seed);
  for (size_t line = 0; line < static_cast<size_t>(count); ++line) {
    char* const target = data.data() + line * line_bytes;
    for (int64_t i = 0; i < line_length; ++i) {
      const uint64_t pattern =
          is_integer ? generator.Next() >> (64 - bits) : ElementPattern(type, generator.Normal());
      StoreElement(type, pattern, i, target);
    }
  }
  return data;
}

}  // namespace gemmd
