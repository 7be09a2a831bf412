// SPDX-License-Identifier: Apache-2.0
//
// What windows that hold and windows that fail say about the highest rate that holds.
//
// Near that rate a window holds by chance, the less the higher its rate is; far below it a window
// still fails now and then, because something else had the machine; far above it hardly any holds.
// So the outcome of a window at rate r is taken as a draw with the probability
//
//   P(holds) = lucky + (1 - lucky - glitch) / (1 + (r / threshold)^(1 / spread))
//
// and the belief is the posterior of the threshold: over a grid of logarithms of rates, with each
// of a few values of `glitch` and `spread` beside it, which are as unknown. The method is that of
// Watson and Pelli (QUEST, 1983), with the nuisance parameters of Kontsevich and Tyler (1999).
#pragma once

#include <vector>

namespace gemmd {

class RateBelief {
 public:
  // Rates are counted in steps of a ratio, kStep, from any rate that the caller likes. The
  // threshold may be anywhere from `least` to `most` to begin with. Precondition: least < most.
  static constexpr double kStep = 1.04;
  RateBelief(int least, int most);

  void Add(int at, bool holds);

  // The threshold, in steps, below which it lies with that probability.
  double Quantile(double probability) const;

 private:
  int first_;  // The threshold of the first cell, in quarters of steps.
  std::vector<std::vector<double>> cells_;  // For each glitch and spread, by threshold.
};

}  // namespace gemmd
