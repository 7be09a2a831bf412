// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/random_matrix.h"

#include <cmath>
#include <numbers>
#include <utility>

#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

class Generator {
 public:
  explicit Generator(uint64_t seed) : uniform_(seed) {}

  uint64_t Next() { return uniform_.Next(); }

  // The Box-Muller transform, one value at a time.
  double Normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2 * std::log(uniform_.Unit()));
    const double angle = 2 * std::numbers::pi * uniform_.Unit();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  SplitMix uniform_;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace

std::string RandomLines(v1::ElementType type, int64_t line_length, int64_t count, uint64_t seed) {
  const int bits = ElementBits(type);
  const size_t line_bytes = (static_cast<size_t>(line_length) * static_cast<size_t>(bits) + 7) / 8;
  std::string data(line_bytes * static_cast<size_t>(count), '\0');
  const bool is_integer = !IsFloat(type);
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
