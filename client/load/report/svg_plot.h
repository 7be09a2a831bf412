// SPDX-License-Identifier: Apache-2.0
//
// Plots as inline SVG: lines and points over two axes, and stacked bars. Colours come from the
// style sheet of the page (classes c0 to c7), so that they follow its theme.
#pragma once

#include <string>
#include <vector>

namespace gemmd {

inline constexpr int kPlotColors = 8;

struct PlotTick {
  double at = 0;
  std::string text;
};

struct PlotAxis {
  std::string title;
  double from = 0;
  double to = 1;
  bool is_logarithmic = false;  // `from` is positive then.
  std::vector<PlotTick> ticks;
};

struct PlotPoint {
  double x = 0;
  double y = 0;
  std::string what;     // Shown where the pointer rests on it.
  bool begins = false;  // No line leads to it from the point before.
};

struct PlotSeries {
  std::string name;
  int color = 0;
  bool is_dashed = false;
  bool has_line = true;
  bool has_marks = false;
  std::vector<PlotPoint> points;
};

struct Plot {
  std::string title;
  PlotAxis x;
  PlotAxis y;
  std::vector<PlotSeries> series;
};
std::string PlotSvg(const Plot& plot);

struct StackedBar {
  std::string name;
  std::vector<double> values;  // One for each part.
  std::vector<std::string> texts;
};
struct StackedBars {
  std::string title;
  std::vector<std::string> parts;
  std::vector<StackedBar> bars;
};
std::string StackedBarsSvg(const StackedBars& bars);

// Axes that hold the values, with ticks at round numbers.
PlotAxis TimeAxis(std::string title, double least_ns, double most_ns);  // Logarithmic, in ns.
PlotAxis LinearAxis(std::string title, double most, const std::string& unit);

}  // namespace gemmd
