// SPDX-License-Identifier: Apache-2.0
//
// Two reports side by side: what differs, and how much of that is noise.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/histogram.h"

namespace gemmd {

// What comparing needs of one step of a report.
struct ComparedStep {
  std::string name;
  double rate = 0;
  int64_t failed = 0;
  int64_t unsent = 0;
  int64_t wrong = 0;
  Histogram latency;
  Histogram service;
  // Figures of the full intervals; percentiles of the intervals in which a call ended OK.
  std::vector<double> rates;
  std::vector<double> p50_ns;
  std::vector<double> p99_ns;
};

struct ComparedReport {
  // What the load was, by name, in the order of the report.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<ComparedStep> steps;
};

// A report as ReportJson writes it.
// Errors: InvalidArgument for any other text.
absl::StatusOr<ComparedReport> ParseReport(absl::string_view json);

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

// The settings that differ, and a table for each step of `a` that `b` has too, by name (the second
// of a name with the second), or for the only one of each; steps of one report only are named.
// Errors: InvalidArgument where no step is in both.
absl::StatusOr<std::string> CompareText(const ComparedReport& a, const ComparedReport& b);

}  // namespace gemmd
