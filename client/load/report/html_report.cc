// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/html_report.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/terminal/text.h"

namespace gemmd {
namespace {

// Plots as inline SVG: lines and points over two axes, and stacked bars. Colours come from the
// page's style sheet (classes c0 to c7) and follow its theme.

constexpr int kPlotColors = 8;

struct PlotPoint {
  double x = 0;
  double y = 0;
  std::string what;     // The tooltip.
  bool begins = false;  // No line connects it to the previous point.
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

// Maps the values of a plot to its drawing, in units that the page scales. The margins hold the
// axis labels, which are larger on a phone.
namespace frame {

constexpr double kWidth = 720;
constexpr double kHeight = 380;
constexpr double kLeft = 112;
constexpr double kRight = 672;
constexpr double kTop = 14;
constexpr double kBottom = 314;

// The position of a value on the axis, 0 to 1.
double Share(const PlotAxis& axis, double value) {
  const double share = axis.is_logarithmic ? std::log(std::max(value, axis.from) / axis.from) /
                                                 std::log(axis.to / axis.from)
                                           : (value - axis.from) / (axis.to - axis.from);
  return std::clamp(share, 0.0, 1.0);
}

double X(const PlotAxis& axis, double value) {
  return kLeft + Share(axis, value) * (kRight - kLeft);
}
double Y(const PlotAxis& axis, double value) {
  return kBottom - Share(axis, value) * (kBottom - kTop);
}

}  // namespace frame

// Narrower columns would be hard to hit, and would make the page large.
constexpr double kMinWidth = 6;
// Max lines in a tooltip; more would hide the curves.
constexpr size_t kMaxLines = 10;

std::vector<double> ColumnsOf(const Plot& plot) {
  std::vector<double> all;
  for (const PlotSeries& series : plot.series) {
    for (const PlotPoint& point : series.points) all.push_back(frame::X(plot.x, point.x));
  }
  std::sort(all.begin(), all.end());
  std::vector<double> columns;
  for (const double x : all) {
    if (columns.empty() || x >= columns.back() + kMinWidth) columns.push_back(x);
  }
  return columns;
}

// The nearest value of each curve in the column.
std::string Lines(const Plot& plot, double column, double from, double to) {
  std::string html;
  size_t lines = 0;
  for (const PlotSeries& series : plot.series) {
    const PlotPoint* nearest = nullptr;
    double distance = 0;
    for (const PlotPoint& point : series.points) {
      const double x = frame::X(plot.x, point.x);
      if (x < from || x > to) continue;
      if (nearest != nullptr && std::fabs(x - column) >= distance) continue;
      nearest = &point;
      distance = std::fabs(x - column);
    }
    if (nearest == nullptr) continue;
    if (++lines > kMaxLines) return html + "<div>...</div>";
    absl::StrAppendFormat(&html, "<div><i class=\"b%d\"></i>%s</div>", series.color,
                          EscapedMarkup(absl::StrCat(series.name, ": ", nearest->what)));
  }
  return html;
}

// The tooltips of a plot, as SVG elements: columns that cover the plot, each with the values of all
// curves there. The style sheet shows and hides them (classes at, hit and tip), without a script.
std::string PlotTips(const Plot& plot) {
  const std::vector<double> columns = ColumnsOf(plot);
  constexpr double kMiddle = (frame::kLeft + frame::kRight) / 2;
  std::string svg;
  for (size_t i = 0; i < columns.size(); ++i) {
    const double from = i == 0 ? frame::kLeft : (columns[i - 1] + columns[i]) / 2;
    const double to = i + 1 == columns.size() ? frame::kRight : (columns[i] + columns[i + 1]) / 2;
    // The box is in the other half, so that it does not hide the values it shows.
    absl::StrAppendFormat(
        &svg,
        "<g class=\"at\"><rect class=\"hit\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>"
        "<foreignObject class=\"tip%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">"
        "<div>%s</div></foreignObject></g>\n",
        from, frame::kTop, to - from, frame::kBottom - frame::kTop,
        columns[i] < kMiddle ? " end" : "", columns[i] < kMiddle ? kMiddle : frame::kLeft,
        frame::kTop, frame::kRight - kMiddle, frame::kBottom - frame::kTop,
        Lines(plot, columns[i], from, to));
  }
  return svg;
}

std::string Axes(const Plot& plot) {
  std::string svg;
  for (const PlotTick& tick : plot.x.ticks) {
    const double x = frame::X(plot.x, tick.at);
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                          x, frame::kTop, x, frame::kBottom, x, frame::kBottom + 22,
                          EscapedMarkup(tick.text));
  }
  for (const PlotTick& tick : plot.y.ticks) {
    const double y = frame::Y(plot.y, tick.at);
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          frame::kLeft, y, frame::kRight, y, frame::kLeft - 7, y + 5,
                          EscapedMarkup(tick.text));
  }
  absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                        (frame::kLeft + frame::kRight) / 2, frame::kHeight - 12,
                        EscapedMarkup(plot.x.title));
  absl::StrAppendFormat(
      &svg,
      "<text class=\"along\" x=\"20\" y=\"%.1f\" text-anchor=\"middle\" transform=\"rotate(-90 "
      "20 %.1f)\">%s</text>\n",
      (frame::kTop + frame::kBottom) / 2, (frame::kTop + frame::kBottom) / 2,
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
      absl::StrAppendFormat(&svg, "%.1f,%.1f ", frame::X(plot.x, point.x),
                            frame::Y(plot.y, point.y));
      if (begins(i + 1)) svg += "\"/>\n";
    }
  }
  for (size_t i = 0; i < points.size(); ++i) {
    // Marks single points, which no line makes visible.
    if (!series.has_marks && !(series.has_line && begins(i) && begins(i + 1))) continue;
    const PlotPoint& point = points[i];
    absl::StrAppendFormat(&svg, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n",
                          series.color, frame::X(plot.x, point.x), frame::Y(plot.y, point.y));
  }
  return svg;
}

std::string Legend(const std::vector<PlotSeries>& series) {
  std::string html = "<p class=\"legend\">";
  for (const PlotSeries& entry : series) {
    absl::StrAppendFormat(&html, "<span><i class=\"b%d%s\"></i>%s</span> ", entry.color,
                          entry.is_dashed ? " dashed" : "", EscapedMarkup(entry.name));
  }
  return html + "</p>\n";
}

std::string Figure(const std::string& title, const std::string& svg, double height,
                   const std::vector<PlotSeries>& legend) {
  return absl::StrFormat(
      "<figure>\n<figcaption>%s</figcaption>\n<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
      "aria-label=\"%s\">\n%s</svg>\n%s</figure>\n",
      EscapedMarkup(title), frame::kWidth, height, EscapedMarkup(title), svg, Legend(legend));
}

std::string PlotSvg(const Plot& plot) {
  std::string svg = Axes(plot);
  for (const PlotSeries& series : plot.series) svg += Drawn(plot, series);
  svg += PlotTips(plot);
  return Figure(plot.title, svg, frame::kHeight, plot.series);
}

}  // namespace

PlotAxis TimeAxis(std::string title, double min_ns, double max_ns) {
  PlotAxis axis = {.title = std::move(title), .is_logarithmic = true, .ticks = {}};
  axis.from = std::pow(10, std::floor(std::log10(std::max(min_ns, 1.0))));
  axis.to = std::max(std::pow(10, std::ceil(std::log10(std::max(max_ns, 1.0)))), 10 * axis.from);
  // On a short axis, powers of ten alone are too few labels.
  const bool is_short = axis.to <= 101 * axis.from;
  for (double power = axis.from; power <= axis.to * 1.01; power *= 10) {
    for (const double at : {power, 2 * power, 5 * power}) {
      if (at > axis.to * 1.01 || (at > power && !is_short)) break;
      axis.ticks.push_back({at, RoundedTime(at)});
    }
  }
  return axis;
}

PlotAxis LinearAxis(std::string title, double max, const std::string& unit) {
  const double wanted = std::max(max, 1e-9) / 5;
  const double power = std::pow(10, std::floor(std::log10(wanted)));
  const double step = power * (wanted > 5 * power ? 10 : wanted > 2 * power ? 5 : 2);
  PlotAxis axis = {.title = std::move(title), .ticks = {}};
  axis.to = step * std::ceil(std::max(max, 1e-9) / step);
  for (double at = 0; at <= axis.to * 1.001; at += step) {
    axis.ticks.push_back({at, absl::StrFormat("%g%s", at, unit)});
  }
  return axis;
}

namespace {

// More points would make the page slow without showing more.
constexpr size_t kMaxPoints = 1000;

// Intervals of one step, thinned to its share of the points.
std::vector<LoadInterval> PlottedIntervals(const LoadReport& report, const ReportStep& step) {
  return Thinned(step.result.intervals, std::max<size_t>(1, kMaxPoints / report.steps.size()));
}

// The range of latencies over all steps.
struct Range {
  double min = 1e18;
  double max = 1;
};

Range LatencyRange(const LoadReport& report) {
  Range range;
  for (const ReportStep& step : report.steps) {
    const Tally& tally = step.result.tally;
    if (tally.latency.count() == 0) continue;
    range.min = std::min(range.min, static_cast<double>(tally.service.min_ns()));
    range.max = std::max(range.max, static_cast<double>(tally.latency.max_ns()));
  }
  range.min = std::clamp(range.min, 1.0, range.max);
  return range;
}

PlotSeries PercentileCurve(const Histogram& histogram, const std::string& name, int color,
                           bool is_dashed) {
  PlotSeries series = {.name = name, .color = color, .is_dashed = is_dashed, .points = {}};
  const double count = static_cast<double>(histogram.count());
  for (double beyond = 1; beyond <= std::min(count, 1e5); beyond *= 1.1) {
    const double fraction = 1 - 1 / beyond;
    const int64_t ns = histogram.ValueAt(fraction);
    series.points.push_back(
        {beyond, static_cast<double>(ns),
         absl::StrFormat("p%.4g %s", 100 * fraction, RoundedTime(static_cast<double>(ns)))});
  }
  return series;
}

// Percentiles over 1 / (1 - p) on a logarithmic axis, so that each nine takes equal space. Both
// clocks, every step.
std::string PercentilePlot(const LoadReport& report) {
  const Range range = LatencyRange(report);
  Plot plot = {.title = "Latency percentiles",
               .x = {.title = "percentile",
                     .from = 1,
                     .to = 1e5,
                     .is_logarithmic = true,
                     .ticks = {{1, "0"},
                               {2, "50"},
                               {10, "90"},
                               {100, "99"},
                               {1e3, "99.9"},
                               {1e4, "99.99"},
                               {1e5, "99.999"}}},
               .y = TimeAxis("latency", range.min, range.max),
               .series = {}};
  int color = 0;
  for (const ReportStep& step : report.steps) {
    const Tally& tally = step.result.tally;
    plot.series.push_back(PercentileCurve(
        tally.latency, absl::StrCat(step.name, " from intended send"), color, false));
    plot.series.push_back(
        PercentileCurve(tally.service, absl::StrCat(step.name, " from actual send"), color, true));
    color = (color + 1) % kPlotColors;
  }
  return PlotSvg(plot);
}

}  // namespace

std::string TimePlot(const LoadReport& report) {
  PlotSeries series[] = {{.name = "p50", .color = 0, .points = {}},
                         {.name = "p99", .color = 1, .points = {}},
                         {.name = "most", .color = 7, .is_dashed = true, .points = {}}};
  Range range;
  double before_s = 0;
  for (const ReportStep& step : report.steps) {
    double end_s = 0;
    bool begins = true;
    const std::vector<LoadInterval> intervals = PlottedIntervals(report, step);
    for (const LoadInterval& interval : intervals) {
      end_s = std::max(end_s, static_cast<double>(interval.to_ns) * 1e-9);
      if (interval.ok == 0) continue;
      // The few answers after the end of a step get a separate point.
      const int64_t usual_ns = intervals.front().to_ns - intervals.front().from_ns;
      begins |= 2 * (interval.to_ns - interval.from_ns) < usual_ns;
      const double x = before_s + static_cast<double>(interval.to_ns) * 1e-9;
      const double values[] = {static_cast<double>(interval.p50_ns),
                               static_cast<double>(interval.p99_ns),
                               static_cast<double>(interval.max_ns)};
      range.min = std::min(range.min, values[0]);
      range.max = std::max(range.max, values[2]);
      for (size_t i = 0; i < 3; ++i) {
        series[i].points.push_back(
            {x, values[i],
             absl::StrFormat("%s at %.1f s, %s", RoundedTime(values[i]), x, step.name), begins});
      }
      begins = false;
    }
    before_s += end_s;
  }
  range.min = std::clamp(range.min, 1.0, range.max);
  return PlotSvg({.title = "Latency over time (from intended send)",
                  .x = LinearAxis("time of the answer after the warm-up", before_s, " s"),
                  .y = TimeAxis("latency", range.min, range.max),
                  .series = {std::begin(series), std::end(series)}});
}

namespace {

// One point per step; for a single step, one per interval.
std::string RatePlot(const LoadReport& report) {
  const bool is_one = report.steps.size() == 1;
  PlotSeries series[] = {
      {.name = "p50", .color = 0, .has_line = !is_one, .has_marks = true, .points = {}},
      {.name = "p99", .color = 1, .has_line = !is_one, .has_marks = true, .points = {}}};
  Range range;
  double max_rate = 0;
  const auto add = [&](double rate, int64_t p50_ns, int64_t p99_ns, const std::string& name) {
    max_rate = std::max(max_rate, rate);
    const double values[] = {static_cast<double>(p50_ns), static_cast<double>(p99_ns)};
    range.min = std::min(range.min, values[0]);
    range.max = std::max(range.max, values[1]);
    for (size_t i = 0; i < 2; ++i) {
      series[i].points.push_back(
          {rate, values[i],
           absl::StrFormat("%s at %.1f/s, %s", RoundedTime(values[i]), rate, name)});
    }
  };
  for (const ReportStep& step : report.steps) {
    const Histogram& latency = step.result.tally.latency;
    if (!is_one && latency.count() > 0) {
      add(step.result.rate, latency.ValueAt(0.5), latency.ValueAt(0.99), step.name);
    }
    if (!is_one) continue;
    for (const LoadInterval& interval : PlottedIntervals(report, step)) {
      const double seconds = static_cast<double>(interval.to_ns - interval.from_ns) * 1e-9;
      if (interval.to_ns > std::llround(step.result.window_s * 1e9) || interval.ok == 0) continue;
      add(static_cast<double>(interval.ok) / seconds, interval.p50_ns, interval.p99_ns,
          absl::StrFormat("second %.1f", static_cast<double>(interval.to_ns) * 1e-9));
    }
  }
  for (PlotSeries& one : series) {
    std::sort(one.points.begin(), one.points.end(),
              [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
  }
  range.min = std::clamp(range.min, 1.0, range.max);
  return PlotSvg({.title = is_one ? "Rate against latency (intervals of the run)"
                                  : "Rate against latency (steps)",
                  .x = LinearAxis("answers per second", max_rate, ""),
                  .y = TimeAxis("latency", range.min, range.max),
                  .series = {std::begin(series), std::end(series)}});
}

// The mean time of a call by stage. Means, because only means add up.
std::string StagePlot(const LoadReport& report) {
  // The stages of a call, in order.
  constexpr const char* kParts[] = {"not sent yet",
                                    "receive + queue",
                                    "copy in",
                                    "compute",
                                    "copy out",
                                    "send prepare",
                                    "rest of the server",
                                    "network, gRPC, client"};
  std::vector<std::vector<double>> bars;
  double max = 0;
  for (const ReportStep& step : report.steps) {
    const Tally& tally = step.result.tally;
    const auto mean = [&](size_t stage) { return tally.stages[stage].MeanNs(); };
    double staged = 0;
    for (size_t i = 0; i < kTotal; ++i) staged += mean(i);
    bars.push_back({tally.latency.MeanNs() - tally.service.MeanNs(), mean(kReceive) + mean(kQueue),
                    mean(kCopyIn), mean(kCompute), mean(kCopyOut), mean(kSendPrepare),
                    std::max(0.0, mean(kTotal) - staged), mean(kOutside)});
    max = std::max(max, std::accumulate(bars.back().begin(), bars.back().end(), 0.0));
  }
  constexpr double kRow = 34;
  constexpr double kNames = 130;
  std::string svg;
  double y = 6;
  for (size_t step = 0; step < bars.size(); ++step, y += kRow) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          kNames - 8, y + 17, EscapedMarkup(report.steps[step].name));
    double x = kNames;
    for (size_t i = 0; i < bars[step].size(); ++i) {
      const double ns = bars[step][i];
      const double width = max > 0 ? ns / max * (frame::kRight - kNames) : 0;
      absl::StrAppendFormat(
          &svg,
          "<rect class=\"b%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"24\"><title>%s</title>"
          "</rect>\n",
          static_cast<int>(i), x, y, width,
          EscapedMarkup(absl::StrCat(kParts[i], ": ", RoundedTime(ns))));
      x += width;
    }
  }
  std::vector<PlotSeries> legend;
  for (size_t i = 0; i < std::size(kParts); ++i) {
    legend.push_back({.name = kParts[i], .color = static_cast<int>(i), .points = {}});
  }
  return Figure("Where a call's time goes (means)", svg, y, legend);
}

constexpr char kHead[] = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>gemmload report</title>
<style>
:root { --ink: #1c2127; --faint: #69727c; --rule: #dfe3e8; --page: #ffffff; --card: #f6f8fa;
  --warn: #b35900; --c0: #2563c9; --c1: #d1542c; --c2: #228b5b; --c3: #8b4bb8; --c4: #b88a00;
  --c5: #0f8a9d; --c6: #c23a78; --c7: #6b7280; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --faint: #98a2ad; --rule: #333b44; --page: #14181d; --card: #1c2229;
    --warn: #f0a04b; --c0: #6ea0f5; --c1: #f08a66; --c2: #57c492; --c3: #c08be6; --c4: #e0b93f;
    --c5: #4fc4d6; --c6: #ee7db1; --c7: #a3adb8; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 1280px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.faint { color: var(--faint); } code { font-size: .85rem; overflow-wrap: anywhere; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; }
.tiles div { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: .6rem 1rem; min-width: 7.5rem; }
.tiles b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.plots { display: grid; gap: 1rem; margin-top: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }
figure { margin: 0; min-width: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: .7rem; }
figcaption { font-weight: 600; margin-bottom: .3rem; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--faint); font-size: 15px; }
.at:hover .hit { fill: var(--rule); opacity: .6; } .hit { fill: transparent; }
.at .tip { visibility: hidden; pointer-events: none; } .at:hover .tip { visibility: visible; }
.tip > div { width: max-content; max-width: 100%; background: var(--page); color: var(--ink);
  border: 1px solid var(--rule); padding: 4px 8px; font-size: 15px; box-sizing: border-box; }
.tip.end > div { margin-left: auto; }
.tip i { display: inline-block; width: .7em; height: .7em; margin-right: .4em; }
.grid { stroke: var(--rule); } polyline { fill: none; stroke-width: 2; }
.dashed { stroke-dasharray: 5 4; }
.legend { margin: .2rem 0 0; font-size: .85rem; color: var(--faint); }
.legend span { white-space: nowrap; margin-right: .7rem; }
.legend i { display: inline-block; width: .9rem; height: .55rem; margin-right: .3rem; }
.legend i.dashed { opacity: .5; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin-top: 1rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; white-space: nowrap; padding: .25rem .5rem; border-bottom: 1px solid var(--rule); }
th.text, td.text { text-align: left; }
th { color: var(--faint); font-weight: 500; white-space: normal; vertical-align: bottom; }
.warnings { border-left: 3px solid var(--warn); padding-left: 1.6rem; }
.verdict { font-size: 1.15rem; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; } h1, h2, .warnings { overflow-wrap: anywhere; }
@media (max-width: 640px) { body { margin: 1rem auto; padding: 0 .6rem; }
  svg text, .tip > div { font-size: 24px; } svg text.along { display: none; } th, td { padding: .25rem .5rem; } }
)";

std::string Style() {
  std::string style;
  for (int i = 0; i < kPlotColors; ++i) {
    absl::StrAppendFormat(&style,
                          "polyline.c%d { stroke: var(--c%d); } circle.c%d, rect.b%d { fill: "
                          "var(--c%d); } i.b%d { background: var(--c%d); }\n",
                          i, i, i, i, i, i, i);
  }
  return style + "</style>\n</head>\n<body>\n";
}

std::string Tile(const std::string& name, const std::string& value) {
  return absl::StrCat("<div><span class=\"faint\">", EscapedMarkup(name), "</span><b>",
                      EscapedMarkup(value), "</b></div>\n");
}

std::string TableHtml(const TextTable& table) {
  std::string html = "<div class=\"scroll\"><table>\n";
  const auto add_row = [&](const char* tag, const auto& cell_of) {
    html += "<tr>";
    for (size_t i = 0; i < table.columns().size(); ++i) {
      const bool is_text = table.columns()[i].align == TextTable::Align::kLeft;
      absl::StrAppend(&html, "<", tag, is_text ? " class=\"text\">" : ">",
                      EscapedMarkup(cell_of(i)), "</", tag, ">");
    }
    html += "</tr>\n";
  };
  add_row("th", [&](size_t i) { return table.columns()[i].heading; });
  for (const auto& row : table.rows()) add_row("td", [&](size_t i) { return row[i]; });
  return html + "</table></div>\n";
}

std::string WarningList(const std::vector<std::string>& warnings) {
  if (warnings.empty()) return "";
  std::string html = "<ul class=\"warnings\">\n";
  for (const std::string& warning : warnings) {
    absl::StrAppend(&html, "<li>", EscapedMarkup(warning), "</li>\n");
  }
  return html + "</ul>\n";
}

// The page begins with the warnings of the whole run, so they are not repeated.
std::vector<std::string> WarningsOfItsOwn(const LoadReport& report, const ReportStep& step) {
  std::vector<std::string> own = step.warnings;
  for (const std::string& said : report.Warnings()) std::erase(own, said);
  return own;
}

std::string StepSection(const LoadReport& report, const ReportStep& step) {
  const StepResult& result = step.result;
  const Tally& tally = result.tally;
  std::string html =
      absl::StrCat("<h2>", EscapedMarkup(step.name), "</h2>\n<div class=\"tiles\">\n");
  html += Tile("rate", absl::StrFormat("%.1f/s", result.rate));
  html += Tile("offered", absl::StrFormat("%.1f/s", result.offered));
  for (const double fraction : {0.5, 0.99, 0.999}) {
    html += Tile(absl::StrFormat("p%g", 100 * fraction),
                 FormatNanoseconds(tally.latency.ValueAt(fraction)));
  }
  html += Tile("failed", FormatCount(tally.failed()));
  html += Tile("wrong", absl::StrCat(step.verified.wrong, " of ", step.verified.checked));
  html += Tile("client",
               absl::StrFormat("%.2f of %.3g cores", result.client_cores, result.usable_cores));
  html += absl::StrCat("</div>\n<p class=\"faint\">", FormatCount(tally.calls()),
                       " calls: ", EscapedMarkup(CodesText(tally.calls_by_code)), "</p>\n");
  html += WarningList(WarningsOfItsOwn(report, step));
  return absl::StrCat(html, TableHtml(LatencyTable(step)), TableHtml(StageTable(step)),
                      TableHtml(KernelTable(step)), TableHtml(ProductTable(report, step)));
}

std::string SloSection(const SloFindings& slo) {
  return absl::StrCat("<h2>Objective ", EscapedMarkup(slo.objective), "</h2>\n<p class=\"faint\">",
                      EscapedMarkup(slo.rule), "</p>\n", TableHtml(WindowTable(slo)));
}

// The server, the client machine and the load.
std::string Heading(const LoadReport& report) {
  std::string html = absl::StrCat("<h1>gemmload: ", EscapedMarkup(report.mix), "</h1>\n<dl>\n");
  const auto add = [&](absl::string_view name, absl::string_view value) {
    absl::StrAppend(&html, "<dt>", name, "</dt><dd>", EscapedMarkup(value), "</dd>\n");
  };
  add("client", ClientText(report));
  for (const ReportedServer& server : report.servers) {
    add("server", server.Text());
    for (const ReportedDevice& device : server.devices) add("device", device.text);
  }
  add("load",
      absl::StrCat(report.arrivals, ", operands ", report.operands, ", ", report.channels,
                   report.channels == 1 ? " channel" : " channels", " and ", report.streams,
                   report.streams == 1 ? " stream" : " streams", " of each client, ", report.owners,
                   report.owners == 1 ? " client" : " clients", " of each server"));
  add("started", report.started);
  return absl::StrCat(html, "<dt>command</dt><dd><code>", EscapedMarkup(report.command),
                      "</code></dd>\n</dl>\n");
}

}  // namespace

std::string ReportHtml(const LoadReport& report) {
  std::string html = absl::StrCat(
      kHead, Style(), Heading(report), "<p class=\"verdict\">", EscapedMarkup(report.Verdict()),
      "</p>\n", WarningList(report.Warnings()), "<div class=\"plots\">\n", PercentilePlot(report),
      TimePlot(report), RatePlot(report), StagePlot(report), "</div>\n");
  if (report.slo.has_value()) html += SloSection(*report.slo);
  for (const ReportStep& step : report.steps) html += StepSection(report, step);
  return html + "</body>\n</html>\n";
}

}  // namespace gemmd
