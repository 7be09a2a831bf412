// SPDX-License-Identifier: Apache-2.0
#include "client/load/html_report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/gemmctl/text_table.h"
#include "client/load/svg_plot.h"

namespace gemmd {
namespace {

constexpr int kColors = 8;

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
  max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.faint { color: var(--faint); } code { font-size: .85rem; overflow-wrap: anywhere; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; }
.tiles div { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: .6rem 1rem; min-width: 7.5rem; }
.tiles b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 1rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: .7rem; }
figcaption { font-weight: 600; margin-bottom: .3rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--faint); font-size: 12px; }
.grid { stroke: var(--rule); } polyline { fill: none; stroke-width: 2; }
.dashed { stroke-dasharray: 5 4; } circle.unseen { opacity: 0; } circle.unseen:hover { opacity: 1; }
.legend { margin: .2rem 0 0; font-size: .85rem; color: var(--faint); }
.legend span { white-space: nowrap; margin-right: .7rem; }
.legend i { display: inline-block; width: .9rem; height: .55rem; margin-right: .3rem; }
.legend i.dashed { opacity: .5; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin-top: 1rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .8rem; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; } th { color: var(--faint); font-weight: 500; }
.warnings { border-left: 3px solid var(--warn); padding-left: 1.6rem; }
)";

std::string Style() {
  std::string style;
  for (int i = 0; i < kColors; ++i) {
    absl::StrAppendFormat(&style,
                          "polyline.c%d { stroke: var(--c%d); } circle.c%d, rect.b%d { fill: "
                          "var(--c%d); } i.b%d { background: var(--c%d); }\n",
                          i, i, i, i, i, i, i);
  }
  return style + "</style>\n</head>\n<body>\n";
}

std::string Time(double ns) { return FormatNanoseconds(std::llround(ns)); }

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

// Percentiles over 1 / (1 - p), so that each nine takes as much room.
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
    color = (color + 1) % kColors;
  }
  return PlotSvg(plot);
}

// One step behind the other.
std::string TimePlot(const LoadReport& report) {
  PlotSeries series[] = {{.name = "p50", .color = 0, .points = {}},
                         {.name = "p99", .color = 1, .points = {}},
                         {.name = "most", .color = 7, .is_dashed = true, .points = {}}};
  Range range;
  double before_s = 0;
  for (const ReportStep& step : report.steps) {
    double end_s = 0;
    for (const LoadInterval& interval : step.result.intervals) {
      end_s = std::max(end_s, static_cast<double>(interval.to_ns) * 1e-9);
      const Histogram& latency = interval.tally.latency;
      if (latency.count() == 0) continue;
      const double x = before_s + static_cast<double>(interval.to_ns) * 1e-9;
      const double values[] = {static_cast<double>(latency.ValueAt(0.5)),
                               static_cast<double>(latency.ValueAt(0.99)),
                               static_cast<double>(latency.most_ns())};
      range.least = std::min(range.least, values[0]);
      range.most = std::max(range.most, values[2]);
      for (size_t i = 0; i < 3; ++i) {
        series[i].points.push_back(
            {x, values[i], absl::StrFormat("%s at %.1f s, %s", Time(values[i]), x, step.name)});
      }
    }
    before_s += end_s;
  }
  range.least = std::clamp(range.least, 1.0, range.most);
  return PlotSvg({.title = "Latency over time (from intended send)",
                  .x = LinearAxis("time of the answer behind the warm-up", before_s, " s"),
                  .y = TimeAxis("latency", range.least, range.most),
                  .series = {std::begin(series), std::end(series)}});
}

// A point for each step; where there is one only, for each of its intervals.
std::string RatePlot(const LoadReport& report) {
  const bool is_one = report.steps.size() == 1;
  PlotSeries series[] = {
      {.name = "p50", .color = 0, .has_line = !is_one, .has_marks = true, .points = {}},
      {.name = "p99", .color = 1, .has_line = !is_one, .has_marks = true, .points = {}}};
  Range range;
  double most_rate = 0;
  const auto add = [&](double rate, const Histogram& latency, const std::string& name) {
    if (latency.count() == 0) return;
    most_rate = std::max(most_rate, rate);
    const double values[] = {static_cast<double>(latency.ValueAt(0.5)),
                             static_cast<double>(latency.ValueAt(0.99))};
    range.least = std::min(range.least, values[0]);
    range.most = std::max(range.most, values[1]);
    for (size_t i = 0; i < 2; ++i) {
      series[i].points.push_back(
          {rate, values[i], absl::StrFormat("%s at %.1f/s, %s", Time(values[i]), rate, name)});
    }
  };
  for (const ReportStep& step : report.steps) {
    if (!is_one) {
      add(step.result.rate, step.result.tally.latency, step.name);
      continue;
    }
    for (const LoadInterval& interval : step.result.intervals) {
      const double seconds = static_cast<double>(interval.to_ns - interval.from_ns) * 1e-9;
      if (interval.to_ns > std::llround(step.result.window_s * 1e9)) continue;
      add(static_cast<double>(interval.tally.ok()) / seconds, interval.tally.latency,
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

// Means, because only means add up. Parts: what a call goes through, in order.
std::string StagePlot(const LoadReport& report) {
  StackedBars bars = {.title = "Where a call's time goes (means)",
                      .parts = {"not sent yet", "receive + queue", "copy in", "compute", "copy out",
                                "send prepare", "rest of the server", "network, gRPC, client"},
                      .bars = {}};
  for (const ReportStep& step : report.steps) {
    const Tally& tally = step.result.tally;
    const auto mean = [&](size_t stage) { return tally.stages[stage].MeanNs(); };
    double staged = 0;
    for (size_t i = 0; i + 2 < kStages; ++i) staged += mean(i);
    StackedBar bar = {
        .name = step.name,
        .values = {tally.latency.MeanNs() - tally.service.MeanNs(), mean(0) + mean(1), mean(2),
                   mean(3), mean(4), mean(5), std::max(0.0, mean(6) - staged), mean(7)},
        .texts = {}};
    for (const double value : bar.values) bar.texts.push_back(Time(value));
    bars.bars.push_back(std::move(bar));
  }
  return StackedBarsSvg(bars);
}

std::string Tile(const std::string& name, const std::string& value) {
  return absl::StrCat("<div><span class=\"faint\">", Escaped(name), "</span><b>", Escaped(value),
                      "</b></div>\n");
}

std::string Row(const std::vector<std::string>& cells, const char* tag) {
  std::string html = "<tr>";
  for (const std::string& cell : cells) {
    absl::StrAppend(&html, "<", tag, ">", Escaped(cell), "</", tag, ">");
  }
  return html + "</tr>\n";
}

std::string StepSection(const LoadReport& report, const ReportStep& step) {
  const StepResult& result = step.result;
  const Tally& tally = result.tally;
  std::string html = absl::StrCat("<h2>", Escaped(step.name), "</h2>\n<div class=\"tiles\">\n");
  html += Tile("rate", absl::StrFormat("%.1f/s", result.rate));
  html += Tile("offered", absl::StrFormat("%.1f/s", result.offered));
  for (const double fraction : {0.5, 0.99, 0.999}) {
    html += Tile(absl::StrFormat("p%g", 100 * fraction),
                 Time(static_cast<double>(tally.latency.ValueAt(fraction))));
  }
  html += Tile("failed", FormatCount(tally.failed()));
  html += Tile("wrong", absl::StrCat(step.verified.wrong, " of ", step.verified.checked));
  html += "</div>\n";
  if (!step.warnings.empty()) html += "<ul class=\"warnings\">\n";
  for (const std::string& warning : step.warnings) {
    absl::StrAppend(&html, "<li>", Escaped(warning), "</li>\n");
  }
  if (!step.warnings.empty()) html += "</ul>\n";
  html += "<div class=\"scroll\"><table>\n";
  html += Row(
      {"latency", "from intended send", "from actual send", "blocked", "send error", "calls above"},
      "th");
  const auto time_at = [](const Histogram& histogram, double fraction) {
    return FormatNanoseconds(histogram.ValueAt(fraction));
  };
  for (const ReportedPercentile& percentile : kPercentiles) {
    const double f = percentile.fraction;
    html += Row({std::string(percentile.name), time_at(tally.latency, f), time_at(tally.service, f),
                 time_at(tally.blocked, f), time_at(tally.send_error, f),
                 FormatCount(tally.latency.CountAbove(tally.latency.ValueAt(f)))},
                "td");
  }
  html += Row({"most", time_at(tally.latency, 1), time_at(tally.service, 1),
               time_at(tally.blocked, 1), time_at(tally.send_error, 1), "0"},
              "td");
  html += "</table></div>\n<div class=\"scroll\"><table>\n";
  html += Row({"stage", "mean", "p50", "p99", "most"}, "th");
  for (size_t i = 0; i < kStages; ++i) {
    const Histogram& stage = tally.stages[i];
    html += Row({kStageNames[i], Time(stage.MeanNs()), time_at(stage, 0.5), time_at(stage, 0.99),
                 time_at(stage, 1)},
                "td");
  }
  html += "</table></div>\n<div class=\"scroll\"><table>\n";
  html += Row({"product", "calls", "p50", "p99", "most"}, "th");
  for (size_t i = 0; i < tally.latency_by_product.size(); ++i) {
    const Histogram& latency = tally.latency_by_product[i];
    html += Row({report.products[i], FormatCount(latency.count()), time_at(latency, 0.5),
                 time_at(latency, 0.99), time_at(latency, 1)},
                "td");
  }
  return html + "</table></div>\n";
}

std::string SloSection(const SloFindings& slo) {
  std::string html =
      absl::StrCat("<h2>Objective ", Escaped(slo.objective), "</h2>\n<p>",
                   slo.rate > 0 ? absl::StrFormat("Highest rate that holds: %.1f/s.", slo.rate)
                                : std::string("No rate holds."),
                   "</p>\n<p class=\"faint\">", Escaped(slo.rule), "</p>\n<ul>\n");
  for (const std::string& trial : slo.trials) {
    absl::StrAppend(&html, "<li>", Escaped(trial), "</li>\n");
  }
  return html + "</ul>\n";
}

}  // namespace

std::string ReportHtml(const LoadReport& report) {
  std::string html = absl::StrCat(kHead, Style());
  std::string servers;
  for (const std::string& address : report.addresses) {
    absl::StrAppend(&servers, servers.empty() ? "" : ", ", address);
  }
  absl::StrAppend(
      &html, "<h1>gemmload: ", Escaped(report.mix), "</h1>\n<p class=\"faint\">",
      Escaped(absl::StrCat(report.started, ", ", servers,
                           report.server_version.empty() ? "" : ", gemmd ", report.server_version,
                           ", channels for each server: ", report.channels, ", ", report.arrivals,
                           ", operands ", report.operands)),
      "<br/><code>", Escaped(report.command), "</code></p>\n<div class=\"plots\">\n");
  absl::StrAppend(&html, PercentilePlot(report), TimePlot(report), RatePlot(report),
                  StagePlot(report), "</div>\n");
  if (report.slo.has_value()) html += SloSection(*report.slo);
  for (const ReportStep& step : report.steps) html += StepSection(report, step);
  return html + "</body>\n</html>\n";
}

}  // namespace gemmd
