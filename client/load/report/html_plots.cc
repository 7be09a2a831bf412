// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/html_plots.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/load/report/svg_plot.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

std::string Time(double ns) { return FormatNanoseconds(std::llround(ns)); }

// A page of many more points draws slowly and shows no more.
constexpr size_t kMostPoints = 1000;

// Intervals of one step, as many as its share of the points.
std::vector<LoadInterval> PlottedIntervals(const LoadReport& report, const ReportStep& step) {
  return Thinned(step.result.intervals, std::max<size_t>(1, kMostPoints / report.steps.size()));
}

// The widest range of the latencies of all steps.
struct Range {
  double least = 1e18;
  double most = 1;
};

Range LatencyRange(const LoadReport& report) {
  Range range;
  for (const ReportStep& step : report.steps) {
    const Tally& tally = step.result.tally;
    if (tally.latency.count() == 0) continue;
    range.least = std::min(range.least, static_cast<double>(tally.service.least_ns()));
    range.most = std::max(range.most, static_cast<double>(tally.latency.most_ns()));
  }
  range.least = std::clamp(range.least, 1.0, range.most);
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
         absl::StrFormat("p%.4g %s", 100 * fraction, Time(static_cast<double>(ns)))});
  }
  return series;
}

}  // namespace

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
               .y = TimeAxis("latency", range.least, range.most),
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
      // The few answers after the end of a step are a point of their own.
      const int64_t usual_ns = intervals.front().to_ns - intervals.front().from_ns;
      begins |= 2 * (interval.to_ns - interval.from_ns) < usual_ns;
      const double x = before_s + static_cast<double>(interval.to_ns) * 1e-9;
      const double values[] = {static_cast<double>(interval.p50_ns),
                               static_cast<double>(interval.p99_ns),
                               static_cast<double>(interval.most_ns)};
      range.least = std::min(range.least, values[0]);
      range.most = std::max(range.most, values[2]);
      for (size_t i = 0; i < 3; ++i) {
        series[i].points.push_back(
            {x, values[i], absl::StrFormat("%s at %.1f s, %s", Time(values[i]), x, step.name),
             begins});
      }
      begins = false;
    }
    before_s += end_s;
  }
  range.least = std::clamp(range.least, 1.0, range.most);
  return PlotSvg({.title = "Latency over time (from intended send)",
                  .x = LinearAxis("time of the answer after the warm-up", before_s, " s"),
                  .y = TimeAxis("latency", range.least, range.most),
                  .series = {std::begin(series), std::end(series)}});
}

std::string RatePlot(const LoadReport& report) {
  const bool is_one = report.steps.size() == 1;
  PlotSeries series[] = {
      {.name = "p50", .color = 0, .has_line = !is_one, .has_marks = true, .points = {}},
      {.name = "p99", .color = 1, .has_line = !is_one, .has_marks = true, .points = {}}};
  Range range;
  double most_rate = 0;
  const auto add = [&](double rate, int64_t p50_ns, int64_t p99_ns, const std::string& name) {
    most_rate = std::max(most_rate, rate);
    const double values[] = {static_cast<double>(p50_ns), static_cast<double>(p99_ns)};
    range.least = std::min(range.least, values[0]);
    range.most = std::max(range.most, values[1]);
    for (size_t i = 0; i < 2; ++i) {
      series[i].points.push_back(
          {rate, values[i], absl::StrFormat("%s at %.1f/s, %s", Time(values[i]), rate, name)});
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
  range.least = std::clamp(range.least, 1.0, range.most);
  return PlotSvg({.title = is_one ? "Rate against latency (intervals of the run)"
                                  : "Rate against latency (steps)",
                  .x = LinearAxis("answers per second", most_rate, ""),
                  .y = TimeAxis("latency", range.least, range.most),
                  .series = {std::begin(series), std::end(series)}});
}

std::string StagePlot(const LoadReport& report) {
  // What a call goes through, in order.
  StackedBars bars = {.title = "Where a call's time goes (means)",
                      .parts = {"not sent yet", "receive + queue", "copy in", "compute", "copy out",
                                "send prepare", "rest of the server", "network, gRPC, client"},
                      .bars = {}};
  for (const ReportStep& step : report.steps) {
    const Tally& tally = step.result.tally;
    const auto mean = [&](size_t stage) { return tally.stages[stage].MeanNs(); };
    double staged = 0;
    for (size_t i = 0; i < kTotal; ++i) staged += mean(i);
    StackedBar bar = {
        .name = step.name,
        .values = {tally.latency.MeanNs() - tally.service.MeanNs(), mean(kReceive) + mean(kQueue),
                   mean(kCopyIn), mean(kCompute), mean(kCopyOut), mean(kSendPrepare),
                   std::max(0.0, mean(kTotal) - staged), mean(kOutside)},
        .texts = {}};
    for (const double value : bar.values) bar.texts.push_back(Time(value));
    bars.bars.push_back(std::move(bar));
  }
  return StackedBarsSvg(bars);
}

}  // namespace gemmd
