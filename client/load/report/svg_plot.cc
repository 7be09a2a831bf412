// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/load/report/plot_frame.h"
#include "client/load/report/plot_tips.h"
#include "client/terminal/markup.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

using Frame = PlotFrame;

std::string Axes(const Plot& plot) {
  std::string svg;
  for (const PlotTick& tick : plot.x.ticks) {
    const double x = Frame::X(plot.x, tick.at);
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                          x, Frame::kTop, x, Frame::kBottom, x, Frame::kBottom + 22,
                          EscapedMarkup(tick.text));
  }
  for (const PlotTick& tick : plot.y.ticks) {
    const double y = Frame::Y(plot.y, tick.at);
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          Frame::kLeft, y, Frame::kRight, y, Frame::kLeft - 7, y + 5,
                          EscapedMarkup(tick.text));
  }
  absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                        (Frame::kLeft + Frame::kRight) / 2, Frame::kHeight - 12,
                        EscapedMarkup(plot.x.title));
  absl::StrAppendFormat(
      &svg,
      "<text class=\"along\" x=\"20\" y=\"%.1f\" text-anchor=\"middle\" transform=\"rotate(-90 "
      "20 %.1f)\">%s</text>\n",
      (Frame::kTop + Frame::kBottom) / 2, (Frame::kTop + Frame::kBottom) / 2,
      EscapedMarkup(plot.y.title));
  return svg;
}

std::string Drawn(const Plot& plot, const PlotSeries& series) {
  std::string svg;
  const std::vector<PlotPoint>& points = series.points;
  const auto begins = [&points](size_t i) {
    return i == 0 || i == points.size() || points[i].begins;
  };
  for (size_t i = 0; i < points.size(); ++i) {
    const PlotPoint& point = points[i];
    const bool is_lone = begins(i) && begins(i + 1);
    if (series.has_line && !is_lone) {
      if (begins(i)) {
        absl::StrAppendFormat(&svg, "<polyline class=\"c%d%s\" points=\"", series.color,
                              series.is_dashed ? " dashed" : "");
      }
      absl::StrAppendFormat(&svg, "%.1f,%.1f ", Frame::X(plot.x, point.x),
                            Frame::Y(plot.y, point.y));
      if (begins(i + 1)) svg += "\"/>\n";
    }
  }
  for (size_t i = 0; i < points.size(); ++i) {
    // A point without a line would not be seen.
    if (!series.has_marks && !(series.has_line && begins(i) && begins(i + 1))) continue;
    const PlotPoint& point = points[i];
    absl::StrAppendFormat(&svg, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n",
                          series.color, Frame::X(plot.x, point.x), Frame::Y(plot.y, point.y));
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
      EscapedMarkup(title), Frame::kWidth, height, EscapedMarkup(title), svg, Legend(legend));
}

}  // namespace

std::string PlotSvg(const Plot& plot) {
  std::string svg = Axes(plot);
  std::vector<LegendEntry> legend;
  for (const PlotSeries& series : plot.series) {
    svg += Drawn(plot, series);
    legend.push_back({series.name, series.color, series.is_dashed});
  }
  svg += PlotTips(plot);
  return Figure(plot.title, svg, Frame::kHeight, legend);
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
      const double width = most > 0 ? bar.values[i] / most * (Frame::kRight - kNames) : 0;
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
  // Few powers of ten would leave a reader without numbers between them.
  const bool is_short = axis.to <= 101 * axis.from;
  for (double power = axis.from; power <= axis.to * 1.01; power *= 10) {
    for (const double at : {power, 2 * power, 5 * power}) {
      if (at > axis.to * 1.01 || (at > power && !is_short)) break;
      axis.ticks.push_back({at, FormatNanoseconds(std::llround(at))});
    }
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
