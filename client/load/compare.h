// SPDX-License-Identifier: Apache-2.0
//
// Two reports side by side: what differs, and how much of that is noise.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/histogram.h"

namespace gemmd {

// What comparing needs of one step of a report.
struct ComparedStep {
  std::string name;
  double rate = 0;
  Histogram latency;
  Histogram service;
  // Of the full intervals.
  std::vector<double> rates;
  std::vector<double> p50_ns;
  std::vector<double> p99_ns;
};

// The steps of a report as ReportJson writes it.
// Errors: InvalidArgument for any other text.
absl::StatusOr<std::vector<ComparedStep>> ParseReport(absl::string_view json);

// A figure and half the width of its interval of 95 % confidence, the wider of two: what sampling
// leaves open (for a percentile, between the ranks n p -+ 1.96 sqrt(n p (1 - p)); calls taken as
// independent, which they are not quite) and what the figure's own values in the intervals of the
// run scatter (1.96 standard errors of their mean), where there are at least three.
struct Estimate {
  double value = 0;
  double noise = 0;
  bool has_noise = false;
};
Estimate EstimatePercentile(const Histogram& histogram, double fraction,
                            const std::vector<double>& by_interval);
Estimate EstimateMean(double value, const std::vector<double>& by_interval);

// A table for each step of `a` that `b` has too, by name, or for the only one of each.
// Errors: InvalidArgument where there is none.
absl::StatusOr<std::string> CompareText(const std::vector<ComparedStep>& a,
                                        const std::vector<ComparedStep>& b);

}  // namespace gemmd
