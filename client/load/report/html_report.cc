// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/html_report.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/load/report/html_plots.h"
#include "client/load/report/svg_plot.h"
#include "client/terminal/markup.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

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
  for (int i = 0; i < kPlotColors; ++i) {
    absl::StrAppendFormat(&style,
                          "polyline.c%d { stroke: var(--c%d); } circle.c%d, rect.b%d { fill: "
                          "var(--c%d); } i.b%d { background: var(--c%d); }\n",
                          i, i, i, i, i, i, i);
  }
  return style + "</style>\n</head>\n<body>\n";
}

std::string Time(double ns) { return FormatNanoseconds(std::llround(ns)); }

std::string Tile(const std::string& name, const std::string& value) {
  return absl::StrCat("<div><span class=\"faint\">", EscapedMarkup(name), "</span><b>",
                      EscapedMarkup(value), "</b></div>\n");
}

std::string Row(const std::vector<std::string>& cells, const char* tag) {
  std::string html = "<tr>";
  for (const std::string& cell : cells) {
    absl::StrAppend(&html, "<", tag, ">", EscapedMarkup(cell), "</", tag, ">");
  }
  return html + "</tr>\n";
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
                 Time(static_cast<double>(tally.latency.ValueAt(fraction))));
  }
  html += Tile("failed", FormatCount(tally.failed()));
  html += Tile("wrong", absl::StrCat(step.verified.wrong, " of ", step.verified.checked));
  html += absl::StrCat("</div>\n<p class=\"faint\">", FormatCount(tally.calls()),
                       " calls: ", EscapedMarkup(CodesText(tally.calls_by_code)), "</p>\n");
  if (!step.warnings.empty()) html += "<ul class=\"warnings\">\n";
  for (const std::string& warning : step.warnings) {
    absl::StrAppend(&html, "<li>", EscapedMarkup(warning), "</li>\n");
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
  for (size_t i = 0; i < kCallStages; ++i) {
    const Histogram& stage = tally.stages[i];
    html += Row({kStageNames[i], Time(stage.MeanNs()), time_at(stage, 0.5), time_at(stage, 0.99),
                 time_at(stage, 1)},
                "td");
  }
  if (tally.failed() > 0) {
    const Histogram& failed = tally.failed_latency;
    html += Row({"latency of failed calls", Time(failed.MeanNs()), time_at(failed, 0.5),
                 time_at(failed, 0.99), time_at(failed, 1)},
                "td");
  }
  html += "</table></div>\n<div class=\"scroll\"><table>\n";
  html += Row({"product", "calls", "checked", "p50", "p99", "most"}, "th");
  for (size_t i = 0; i < tally.latency_by_product.size(); ++i) {
    const Histogram& latency = tally.latency_by_product[i];
    html += Row({report.products[i], FormatCount(latency.count()), FormatCount(step.CheckedOf(i)),
                 time_at(latency, 0.5), time_at(latency, 0.99), time_at(latency, 1)},
                "td");
  }
  return html + "</table></div>\n";
}

std::string SloSection(const SloFindings& slo) {
  std::string html = absl::StrCat("<h2>Objective ", EscapedMarkup(slo.objective), "</h2>\n<p>",
                                  EscapedMarkup(slo.Verdict()), "</p>\n<p class=\"faint\">",
                                  EscapedMarkup(slo.rule), "</p>\n<ul>\n");
  for (const std::string& trial : slo.trials) {
    absl::StrAppend(&html, "<li>", EscapedMarkup(trial), "</li>\n");
  }
  return html + "</ul>\n";
}

}  // namespace

std::string ReportHtml(const LoadReport& report) {
  std::string html = absl::StrCat(kHead, Style());
  std::string servers;
  for (const ReportedServer& server : report.servers) {
    absl::StrAppend(&servers, servers.empty() ? "" : ", ", server.Text());
  }
  absl::StrAppend(&html, "<h1>gemmload: ", EscapedMarkup(report.mix), "</h1>\n<p class=\"faint\">",
                  EscapedMarkup(absl::StrCat(report.started, ", ", servers,
                                             ", channels for each server: ", report.channels, ", ",
                                             report.arrivals, ", operands ", report.operands)),
                  "<br/><code>", EscapedMarkup(report.command),
                  "</code></p>\n<div class=\"plots\">\n");
  absl::StrAppend(&html, PercentilePlot(report), TimePlot(report), RatePlot(report),
                  StagePlot(report), "</div>\n");
  if (report.slo.has_value()) html += SloSection(*report.slo);
  for (const ReportStep& step : report.steps) html += StepSection(report, step);
  return html + "</body>\n</html>\n";
}

}  // namespace gemmd
