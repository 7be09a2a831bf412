// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/terminal/markup.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

// Sizes of the drawing, in its own units; the page scales it.
constexpr double kWidth = 720;
constexpr double kHeight = 340;
constexpr double kLeft = 76;
constexpr double kRight = 28;
constexpr double kTop = 14;
constexpr double kBottom = 50;

// The place of a value on the axis, 0 to 1.
double Share(const PlotAxis& axis, double value) {
  if (!axis.is_logarithmic) return (value - axis.from) / (axis.to - axis.from);
  return std::log(std::max(value, axis.from) / axis.from) / std::log(axis.to / axis.from);
}

double X(const PlotAxis& axis, double value) {
  return kLeft + std::clamp(Share(axis, value), 0.0, 1.0) * (kWidth - kLeft - kRight);
}

double Y(const PlotAxis& axis, double value) {
  return kHeight - kBottom - std::clamp(Share(axis, value), 0.0, 1.0) * (kHeight - kTop - kBottom);
}

std::string Axes(const Plot& plot) {
  std::string svg;
  for (const PlotTick& tick : plot.x.ticks) {
    const double x = X(plot.x, tick.at);
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                          x, kTop, x, kHeight - kBottom, x, kHeight - kBottom + 16,
                          EscapedMarkup(tick.text));
  }
  for (const PlotTick& tick : plot.y.ticks) {
    const double y = Y(plot.y, tick.at);
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          kLeft, y, kWidth - kRight, y, kLeft - 7, y + 4, EscapedMarkup(tick.text));
  }
  absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                        (kLeft + kWidth - kRight) / 2, kHeight - 10, EscapedMarkup(plot.x.title));
  absl::StrAppendFormat(&svg,
                        "<text x=\"14\" y=\"%.1f\" text-anchor=\"middle\" transform=\"rotate(-90 "
                        "14 %.1f)\">%s</text>\n",
                        (kTop + kHeight - kBottom) / 2, (kTop + kHeight - kBottom) / 2,
                        EscapedMarkup(plot.y.title));
  return svg;
}

std::string Drawn(const Plot& plot, const PlotSeries& series) {
  std::string svg;
  if (series.has_line && series.points.size() > 1) {
    absl::StrAppendFormat(&svg, "<polyline class=\"c%d%s\" points=\"", series.color,
                          series.is_dashed ? " dashed" : "");
    for (const PlotPoint& point : series.points) {
      absl::StrAppendFormat(&svg, "%.1f,%.1f ", X(plot.x, point.x), Y(plot.y, point.y));
    }
    svg += "\"/>\n";
  }
  // A circle tells what it stands for, one that is not seen too.
  const bool is_seen = series.has_marks || series.points.size() == 1;
  for (const PlotPoint& point : series.points) {
    absl::StrAppendFormat(
        &svg,
        "<circle class=\"c%d%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>%s</title></circle>\n",
        series.color, is_seen ? "" : " unseen", X(plot.x, point.x), Y(plot.y, point.y),
        EscapedMarkup(absl::StrCat(series.name, ": ", point.what)));
  }
  return svg;
}

struct LegendEntry {
  std::string name;
  int color;
  bool is_dashed;
};

std::string Legend(const std::vector<LegendEntry>& entries) {
  std::string html = "<p class=\"legend\">";
  for (const LegendEntry& entry : entries) {
    absl::StrAppendFormat(&html, "<span><i class=\"b%d%s\"></i>%s</span> ", entry.color,
                          entry.is_dashed ? " dashed" : "", EscapedMarkup(entry.name));
  }
  return html + "</p>\n";
}

std::string Figure(const std::string& title, const std::string& svg, double height,
                   const std::vector<LegendEntry>& legend) {
  return absl::StrFormat(
      "<figure>\n<figcaption>%s</figcaption>\n<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
      "aria-label=\"%s\">\n%s</svg>\n%s</figure>\n",
      EscapedMarkup(title), kWidth, height, EscapedMarkup(title), svg, Legend(legend));
}

}  // namespace

std::string PlotSvg(const Plot& plot) {
  std::string svg = Axes(plot);
  std::vector<LegendEntry> legend;
  for (const PlotSeries& series : plot.series) {
    svg += Drawn(plot, series);
    legend.push_back({series.name, series.color, series.is_dashed});
  }
  return Figure(plot.title, svg, kHeight, legend);
}

std::string StackedBarsSvg(const StackedBars& bars) {
  constexpr double kRow = 34;
  constexpr double kNames = 130;
  double most = 0;
  for (const StackedBar& bar : bars.bars) {
    most = std::max(most, std::accumulate(bar.values.begin(), bar.values.end(), 0.0));
  }
  std::string svg;
  double y = 6;
  for (const StackedBar& bar : bars.bars) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          kNames - 8, y + 17, EscapedMarkup(bar.name));
    double x = kNames;
    for (size_t i = 0; i < bar.values.size(); ++i) {
      const double width = most > 0 ? bar.values[i] / most * (kWidth - kNames - kRight) : 0;
      absl::StrAppendFormat(
          &svg,
          "<rect class=\"b%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"24\"><title>%s</title>"
          "</rect>\n",
          static_cast<int>(i), x, y, width,
          EscapedMarkup(absl::StrCat(bars.parts[i], ": ", bar.texts[i])));
      x += width;
    }
    y += kRow;
  }
  std::vector<LegendEntry> legend;
  for (size_t i = 0; i < bars.parts.size(); ++i) {
    legend.push_back({bars.parts[i], static_cast<int>(i), false});
  }
  return Figure(bars.title, svg, y, legend);
}

PlotAxis TimeAxis(std::string title, double least_ns, double most_ns) {
  PlotAxis axis = {.title = std::move(title), .is_logarithmic = true, .ticks = {}};
  axis.from = std::pow(10, std::floor(std::log10(std::max(least_ns, 1.0))));
  axis.to = std::max(std::pow(10, std::ceil(std::log10(std::max(most_ns, 1.0)))), 10 * axis.from);
  for (double at = axis.from; at <= axis.to * 1.01; at *= 10) {
    axis.ticks.push_back({at, FormatNanoseconds(std::llround(at))});
  }
  return axis;
}

PlotAxis LinearAxis(std::string title, double most, const std::string& unit) {
  const double wanted = std::max(most, 1e-9) / 5;
  const double power = std::pow(10, std::floor(std::log10(wanted)));
  const double step = power * (wanted > 5 * power ? 10 : wanted > 2 * power ? 5 : 2);
  PlotAxis axis = {.title = std::move(title), .ticks = {}};
  axis.to = step * std::ceil(std::max(most, 1e-9) / step);
  for (double at = 0; at <= axis.to * 1.001; at += step) {
    axis.ticks.push_back({at, absl::StrFormat("%g%s", at, unit)});
  }
  return axis;
}

}  // namespace gemmd
