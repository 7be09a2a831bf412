// SPDX-License-Identifier: Apache-2.0
//
// The report as a self-contained HTML file without scripts.
#pragma once

#include <string>
#include <vector>

#include "client/load/report/report.h"

namespace gemmd {

struct PlotTick {
  double at = 0;
  std::string text;
};

struct PlotAxis {
  std::string title;
  double from = 0;
  double to = 1;
  bool is_logarithmic = false;  // Requires a positive `from`.
  std::vector<PlotTick> ticks;
};

// Axes that cover the values, with ticks at round numbers.
PlotAxis TimeAxis(std::string title, double min_ns, double max_ns);  // Logarithmic, in ns.
PlotAxis LinearAxis(std::string title, double max, const std::string& unit);

// Plots the figures of the intervals, one step after the other.
std::string TimePlot(const LoadReport& report);

std::string ReportHtml(const LoadReport& report);

}  // namespace gemmd
