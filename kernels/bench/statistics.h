// SPDX-License-Identifier: Apache-2.0
//
// What is said of a list of times.
#pragma once

#include <vector>

namespace gemmd::bench {

// The value that a share of the others, 0 to 1, lies below; between two of them in proportion.
// Precondition: there is a value.
double Quantile(std::vector<double> values, double share);

double Median(std::vector<double> values);

// The middle half's width over the median. 0.01: half of the samples lie within about 1 %.
double Spread(const std::vector<double>& values);

// The median of above[i] / below[i]: of times that were taken in turns, so that what slows one turn
// down slows both. As many values of each.
double MedianRatio(const std::vector<double>& above, const std::vector<double>& below);

}  // namespace gemmd::bench
