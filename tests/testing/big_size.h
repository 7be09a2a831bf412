// SPDX-License-Identifier: Apache-2.0
//
// Sizes in 128 bits, with which tests check sizes computed in 64 bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace gemmd {

// A non-negative number. Sums and products saturate at 2^63, which means "does not fit an int64_t";
// so a product of two never overflows 128 bits.
class BigSize {
 public:
  BigSize(int64_t value)
      : value_(value) {}  // NOLINT(google-explicit-constructor): allows mixing with numbers.

  bool fits() const { return value_ < kTooMuch; }
  // Precondition: it fits.
  int64_t value() const { return static_cast<int64_t>(value_); }

  friend BigSize operator+(BigSize a, BigSize b) { return Of(a.value_ + b.value_); }
  friend BigSize operator*(BigSize a, BigSize b) { return Of(a.value_ * b.value_); }
  friend BigSize operator/(BigSize a, int64_t b) { return Of(a.value_ / b); }
  friend bool operator==(BigSize a, BigSize b) = default;
  friend bool operator<=(BigSize a, BigSize b) { return a.value_ <= b.value_; }

 private:
  __extension__ using Number = __int128;
  static constexpr Number kTooMuch = Number{1} << 63;
  static BigSize Of(Number number) {
    BigSize size(0);
    size.value_ = std::min(number, kTooMuch);
    return size;
  }

  Number value_;
};

}  // namespace gemmd
