// SPDX-License-Identifier: Apache-2.0
#include "client/load/rate_belief.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace gemmd {
namespace {

constexpr int kCellsOfStep = 4;
constexpr double kLucky = 0.02;
constexpr double kGlitches[] = {0.02, 0.1, 0.25};
// 0.12: from 5/6 to 1/6 of the windows hold within a factor of 1.5.
constexpr double kSpreads[] = {0.015, 0.05, 0.12};

// So many cells from the threshold, even the widest spread leaves nothing open.
constexpr int kFarCells = 640;

// The chance that a window holds, by how many cells its rate is above the threshold; for each
// glitch and spread. Index 0 is kFarCells below.
std::vector<std::vector<double>> MakeChances() {
  std::vector<std::vector<double>> chances;
  for (const double glitch : kGlitches) {
    for (const double spread : kSpreads) {
      std::vector<double>& of_one = chances.emplace_back();
      for (int above = -kFarCells; above <= kFarCells; ++above) {
        const double ratio = above * std::log(RateBelief::kStep) / kCellsOfStep;
        of_one.push_back(kLucky + (1 - kLucky - glitch) / (1 + std::exp(ratio / spread)));
      }
    }
  }
  return chances;
}

const std::vector<std::vector<double>>& Chances() {
  static const auto& chances = *new std::vector<std::vector<double>>(MakeChances());
  return chances;
}

}  // namespace

RateBelief::RateBelief(int least, int most)
    : first_(least * kCellsOfStep),
      cells_(std::size(kGlitches) * std::size(kSpreads),
             std::vector<double>(static_cast<size_t>((most - least) * kCellsOfStep + 1), 1.0)) {}

void RateBelief::Add(int at, bool holds) {
  double sum = 0;
  for (size_t i = 0; i < cells_.size(); ++i) {
    const std::vector<double>& chances = Chances()[i];
    int above = at * kCellsOfStep - first_;
    for (double& cell : cells_[i]) {
      const int index = std::clamp(above--, -kFarCells, kFarCells) + kFarCells;
      const double chance = chances[static_cast<size_t>(index)];
      cell *= holds ? chance : 1 - chance;
      sum += cell;
    }
  }
  // So that no number of windows makes it underflow.
  for (std::vector<double>& of_one : cells_) {
    for (double& cell : of_one) cell /= sum;
  }
}

double RateBelief::Quantile(double probability) const {
  std::vector<double> below;  // With each threshold and all that are lower.
  double sum = 0;
  for (size_t i = 0; i < cells_[0].size(); ++i) {
    for (const std::vector<double>& of_one : cells_) sum += of_one[i];
    below.push_back(sum);
  }
  const auto it = std::lower_bound(below.begin(), below.end(), probability * sum);
  const auto cell = std::min<std::ptrdiff_t>(it - below.begin(), std::ssize(below) - 1);
  return static_cast<double>(first_ + cell) / kCellsOfStep;
}

}  // namespace gemmd
