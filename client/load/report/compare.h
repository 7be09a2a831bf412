// SPDX-License-Identifier: Apache-2.0
//
// Compares two reports, and separates differences from noise.
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

// The data of one step of a report that a comparison needs.
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
  // Settings of the load as names and values, in the order of the report.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<ComparedStep> steps;
};

// Parses a report written by ReportJson. Errors: InvalidArgument for any other text.
absl::StatusOr<ComparedReport> ParseReport(absl::string_view json);

// A figure and its 95 % confidence interval; an unknown end is infinite.
struct Estimate {
  double value = 0;
  double low = 0;
  double high = 0;

  bool HasNan() const { return std::isnan(value) || std::isnan(low) || std::isnan(high); }
  bool Overlaps(const Estimate& other) const { return low <= other.high && other.low <= high; }
};

// A percentile, by order statistics: with 95 % confidence it lies between two of the values,
// whatever their distribution, if calls are independent. Because calls are not quite independent,
// the interval is widened if the percentile scatters more between the intervals of the run (1.96
// standard errors of the mean, from at least three intervals).
Estimate EstimatePercentile(const Histogram& histogram, double fraction,
                            const std::vector<double>& by_interval);
// A mean, with a confidence interval from its scatter between the intervals of the run.
Estimate EstimateMean(double value, const std::vector<double>& by_interval);

// Ranks, from 1 to `count`, of the values between which the percentile lies; 0 or count + 1 if
// there are too few values to bound that side. Each bound fails with a probability of at most 2.5
// %.
struct RankInterval {
  int64_t low = 0;
  int64_t high = 0;
};
RankInterval RanksAround(int64_t count, double fraction);

// Lists the settings that differ, and prints a table for each step that both reports have. Steps
// match by name (repeated names in order), or because each report has only one step. Names the
// steps of only one report. Errors: InvalidArgument if no step matches.
absl::StatusOr<std::string> CompareText(const ComparedReport& a, const ComparedReport& b);

}  // namespace gemmd
