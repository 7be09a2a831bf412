// SPDX-License-Identifier: Apache-2.0
//
// Sizes in checked 64-bit arithmetic.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/element.h"

namespace gemmd {

// A product or sum of non-negative numbers; it is absent once it exceeds 63 bits.
class Checked {
 public:
  Checked(int64_t value) : value_(value) {}  // NOLINT(google-explicit-constructor): numbers mix in.

  friend Checked operator*(Checked a, Checked b) {
    Checked result(0);
    const bool overflows =
        !a.value_ || !b.value_ || __builtin_mul_overflow(*a.value_, *b.value_, &*result.value_);
    if (overflows) result.value_.reset();
    return result;
  }
  friend Checked operator+(Checked a, Checked b) {
    Checked result(0);
    const bool overflows =
        !a.value_ || !b.value_ || __builtin_add_overflow(*a.value_, *b.value_, &*result.value_);
    if (overflows) result.value_.reset();
    return result;
  }
  std::optional<int64_t> value() const { return value_; }

 private:
  std::optional<int64_t> value_;
};

// Bytes of `count` elements packed in one line.
inline Checked PackedBytes(ElementType type, int64_t count) {
  const int64_t bits = BitsOf(type);
  if (bits % 8 == 0) return Checked(count) * Checked(bits / 8);
  // Eight elements fill `bits` bytes, so nothing here exceeds the result by more than 8 bits.
  return Checked(count / 8) * Checked(bits) + Checked((count % 8 * bits + 7) / 8);
}

}  // namespace gemmd
