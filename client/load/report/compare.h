// SPDX-License-Identifier: Apache-2.0
//
// Two reports side by side: what differs, and how much of that is noise.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/recorder.h"

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

// A figure and its interval of 95 % confidence; an end that nothing tells is infinite.
struct Estimate {
  double value = 0;
  double low = 0;
  double high = 0;

  bool HasNan() const { return std::isnan(value) || std::isnan(low) || std::isnan(high); }
  bool Overlaps(const Estimate& other) const { return low <= other.high && other.low <= high; }
};

// A percentile, by order statistics: with a confidence of 95 % it lies between two of the values,
// whatever their distribution; calls are taken as independent. Because they are not quite, an end
// is further out where the figure's own values in the intervals of the run scatter more (1.96
// standard errors of their mean), where there are at least three.
Estimate EstimatePercentile(const Histogram& histogram, double fraction,
                            const std::vector<double>& by_interval);
// A mean, by the scatter of its values in the intervals of the run.
Estimate EstimateMean(double value, const std::vector<double>& by_interval);

// Ranks of values between which the percentile lies, from 1 to `count`; 0 and count + 1 where there
// are too few values for such an end. Each end is missed with a probability of 2.5 % at most.
struct RankInterval {
  int64_t low = 0;
  int64_t high = 0;
};
RankInterval RanksAround(int64_t count, double fraction);

// The settings that differ, and a table for each step of `a` that `b` has too, by name (the second
// of a name with the second), or for the only one of each; steps of one report only are named.
// Errors: InvalidArgument where no step is in both.
absl::StatusOr<std::string> CompareText(const ComparedReport& a, const ComparedReport& b);

}  // namespace gemmd
