// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_profile.h"

#include <algorithm>
#include <cmath>

namespace gemmd {
namespace {

double LoadSeconds(const EpilogueCosts& costs, const Problem& problem, ElementType stored,
                   ElementType type) {
  if (!problem.has_product()) return costs.zero;
  return type == stored ? costs.load[stored] : costs.load_integer_from_float;
}

// One element of D.
double ElementSeconds(const EpilogueCosts& costs, const Problem& problem, ElementType stored,
                      ElementType type) {
  double seconds = LoadSeconds(costs, problem, stored, type) + costs.encode[problem.d.type];
  if (problem.has_product()) {
    if (problem.has_scales()) seconds += costs.scale;
    if (problem.alpha != 1) seconds += costs.alpha;
  }
  if (problem.has_c()) {
    seconds += problem.c.order == problem.d.order ? costs.c : costs.c_across;
    seconds += costs.decode[problem.c.type];
  }
  if (problem.bias_axis != BiasAxis::kNone) seconds += costs.bias;
  return seconds + costs.activation[static_cast<size_t>(problem.activation)];
}

}  // namespace

double EpilogueSeconds(const HostCosts& costs, const Problem& problem, ElementType stored,
                       ElementType type) {
  constexpr int64_t kTileLength = 256;
  const EpilogueCosts& finish = type == ElementType::kF32 ? costs.finish_f32 : costs.finish_f64;
  const int64_t tiles = (problem.d.line_length() + kTileLength - 1) / kTileLength;
  const double lines = static_cast<double>(problem.d.lines()) * static_cast<double>(tiles);
  return finish.matrix + lines * finish.line +
         ElementsOf(problem.d, 1) * ElementSeconds(finish, problem, stored, type);
}

double WideningSeconds(const HostCosts& costs, const MatrixLayout& from, ElementType to) {
  const CopyCosts& copies = costs.copies;
  const bool is_biased = from.type == ElementType::kU8 && to == ElementType::kS8;
  const double line = is_biased ? copies.biased_line : copies.line;
  return copies.matrix + static_cast<double>(from.lines()) * line +
         ElementsOf(from, 1) * copies.widen[static_cast<size_t>(from.type)][to];
}

double ExpansionSeconds(const HostCosts& costs, const MatrixLayout& sparse) {
  return ElementsOf(sparse, 1) * costs.copies.expand[sparse.type];
}

namespace {

// The position of an extent's logarithm on the grid.
struct Place {
  size_t below;
  double part;  // Fraction of the way to the next grid point, 0 to 1.
};

template <size_t kSize>
Place PlaceOf(double logarithm, const std::array<int64_t, kSize>& extents) {
  size_t below = 0;
  while (below + 2 < kSize && logarithm > std::log2(static_cast<double>(extents[below + 1]))) {
    ++below;
  }
  const double first = std::log2(static_cast<double>(extents[below]));
  const double last = std::log2(static_cast<double>(extents[below + 1]));
  return {below, std::clamp((logarithm - first) / (last - first), 0.0, 1.0)};
}

}  // namespace

// A grid point that was not measured: extrapolates along the axis with the largest index.
double ExtentGrid::Grown(const Indices& at) const {
  const auto axis = static_cast<size_t>(std::max_element(at.begin(), at.end()) - at.begin());
  const size_t last = at[axis];
  if (last < 2) return 0;
  Indices earlier = at;
  earlier[axis] = last - 1;
  const double before = std::exp2(At(earlier));
  earlier[axis] = last - 2;
  const double growth = std::max(0.0, before - std::exp2(At(earlier))) /
                        static_cast<double>(kExtents[last - 1] - kExtents[last - 2]);
  return std::log2(before + growth * static_cast<double>(kExtents[last] - kExtents[last - 1]));
}

double ExtentGrid::Inside(const Logarithms& extents) const {
  const Place m = PlaceOf(extents[0], kExtents);
  const Place n = PlaceOf(extents[1], kExtents);
  const Place k = PlaceOf(extents[2], kExtents);
  double logarithm = 0;
  for (size_t corner = 0; corner < 8; ++corner) {
    const size_t i = corner / 4;
    const size_t j = corner / 2 % 2;
    const size_t l = corner % 2;
    const double weight = (i == 1 ? m.part : 1 - m.part) * (j == 1 ? n.part : 1 - n.part) *
                          (l == 1 ? k.part : 1 - k.part);
    logarithm += weight * At({m.below + i, n.below + j, k.below + l});
  }
  return std::exp2(logarithm);
}

double ExtentGrid::Seconds(int64_t m, int64_t n, int64_t k) const {
  constexpr int64_t kLast = kExtents[kSize - 1];
  constexpr int64_t kBefore = kExtents[kSize - 2];
  const std::array<int64_t, 3> wanted = {m, n, k};
  Logarithms inside = {};
  for (size_t axis = 0; axis < 3; ++axis) {
    inside[axis] = std::log2(static_cast<double>(std::clamp(wanted[axis], int64_t{1}, kLast)));
  }
  const double seconds = Inside(inside);
  double grown = seconds;
  for (size_t axis = 0; axis < 3; ++axis) {
    if (wanted[axis] <= kLast) continue;
    Logarithms before = inside;
    before[axis] = std::log2(static_cast<double>(kBefore));
    // Noise must not make more work take less time.
    const double growth = std::max(0.0, 1 - Inside(before) / seconds);
    grown *= 1 + growth * static_cast<double>(wanted[axis] - kLast) /
                     static_cast<double>(kLast - kBefore);
  }
  return grown;
}

}  // namespace gemmd
