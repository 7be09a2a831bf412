// SPDX-License-Identifier: Apache-2.0
//
// Seconds of products of one kind, measured where m, n and k each take one of a few extents, and
// those of all other products by interpolation.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gemmd {

class ExtentGrid {
 public:
  // Libraries change their ways with the extents: one line, less than a register tile, less than a
  // cache.
  static constexpr std::array<int64_t, 6> kExtents = {1, 8, 64, 384, 1024, 16384};

  // `measure(m, n, k)` gives the seconds of a product, or 0 for one that shall follow from two
  // smaller ones, which differ from it in one extent only.
  template <typename Measure>
  static ExtentGrid Of(const Measure& measure) {
    ExtentGrid grid;
    for (size_t i = 0; i < kSize; ++i) {
      for (size_t j = 0; j < kSize; ++j) {
        for (size_t l = 0; l < kSize; ++l) {
          const double seconds = measure(kExtents[i], kExtents[j], kExtents[l]);
          grid.At({i, j, l}) = seconds > 0 ? std::log2(seconds) : grid.Grown({i, j, l});
        }
      }
    }
    return grid;
  }

  // The seconds of a product whose extents are 1 or more. Between the extents above, logarithms are
  // interpolated; beyond the last one, time grows with each extent as it did up to there.
  double Seconds(int64_t m, int64_t n, int64_t k) const;

 private:
  static constexpr size_t kSize = kExtents.size();
  using Indices = std::array<size_t, 3>;
  using Logarithms = std::array<double, 3>;

  double& At(const Indices& at) { return logarithms_[(at[0] * kSize + at[1]) * kSize + at[2]]; }
  double At(const Indices& at) const {
    return logarithms_[(at[0] * kSize + at[1]) * kSize + at[2]];
  }
  double Grown(const Indices& at) const;
  double Inside(const Logarithms& extents) const;

  std::array<double, kSize* kSize* kSize> logarithms_ = {};
};

}  // namespace gemmd
