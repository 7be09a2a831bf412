// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/html_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/load/report/html_plots.h"
#include "client/load/report/report_tables.h"
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

std::string Row(const std::vector<std::string>& cells, const char* tag, size_t text_columns) {
  std::string html = "<tr>";
  for (size_t i = 0; i < cells.size(); ++i) {
    absl::StrAppend(&html, "<", tag, i < text_columns ? " class=\"text\">" : ">",
                    EscapedMarkup(cells[i]), "</", tag, ">");
  }
  return html + "</tr>\n";
}

std::string TableHtml(const ReportTable& table) {
  std::string html = "<div class=\"scroll\"><table>\n";
  html += Row(table.headings, "th", table.text_columns);
  for (const std::vector<std::string>& row : table.rows) html += Row(row, "td", table.text_columns);
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

// The page begins with those of the whole run.
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

// What was loaded, from where, and how.
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
