// SPDX-License-Identifier: Apache-2.0
//
// The report for people who read a terminal. What matters most comes last: that is what they see.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/load/report/report.h"
#include "client/load/report/report_tables.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

using Align = TextTable::Align;

std::string TableText(const ReportTable& table) {
  std::vector<TextTable::Column> columns;
  for (const std::string& heading : table.headings) {
    columns.push_back(
        {heading, columns.size() < table.text_columns ? Align::kLeft : Align::kRight});
  }
  TextTable text(std::move(columns));
  for (const std::vector<std::string>& row : table.rows) text.AddRow(row);
  return text.Print();
}

std::string HeadingText(const LoadReport& report) {
  std::string text = absl::StrCat("gemmload ", report.version, ", ", report.started, "\nclient    ",
                                  ClientText(report), "\n");
  for (const ReportedServer& server : report.servers) {
    absl::StrAppend(&text, "server    ", server.Text(), "\n");
    for (const ReportedDevice& device : server.devices) {
      absl::StrAppend(&text, "device    ", device.text, "\n");
    }
  }
  if (report.owners > 1) {
    absl::StrAppend(&text, "owners    ", report.owners, " of each server, each with a session\n");
  }
  absl::StrAppend(&text, "channels  ", report.channels,
                  report.owners > 1 ? " for each owner" : " for each server");
  if (report.streams > 0) absl::StrAppend(&text, ", ", report.streams, " streams of each client");
  absl::StrAppend(&text, "\nmix       ", report.mix, ", operands ", report.operands, "\n",
                  "arrivals  ", report.arrivals, "\n");
  return text;
}

std::string OperationRate(const LoadReport& report, double per_second) {
  return absl::StrReplaceAll(FormatRate(per_second), {{"FLOP/s", report.operation_unit}});
}

std::string CheckedText(const VerifierCounts& verified) {
  if (!verified.is_asked) return "checked   no answer (--verify 0)\n";
  const std::string let_go =
      verified.let_go == 0 ? "" : absl::StrCat("; ", FormatCount(verified.let_go), " let go");
  return absl::StrCat("checked   ", FormatCount(verified.checked), " answers, ",
                      FormatCount(verified.exact),
                      " of them exactly: ", FormatCount(verified.wrong), " wrong", let_go, "\n");
}

std::string WarningLines(const std::vector<std::string>& warnings) {
  std::string text;
  for (const std::string& warning : warnings) absl::StrAppend(&text, "warning: ", warning, "\n");
  return text;
}

std::string StepText(const LoadReport& report, const ReportStep& step) {
  const StepResult& result = step.result;
  const Tally& tally = result.tally;
  std::string text = absl::StrFormat("\n== %s\n\n", step.name);
  absl::StrAppendFormat(&text, "calls     %s in %.3f s after %.3f s of warm-up: %s\n",
                        FormatCount(tally.calls()), result.window_s, report.warmup_s,
                        CodesText(tally.calls_by_code));
  absl::StrAppendFormat(&text, "rate      %.1f/s of %.1f/s offered", result.rate, result.offered);
  if (result.window_s > 0 && tally.ok() > 0) {
    const double share = result.rate / static_cast<double>(tally.ok());
    absl::StrAppend(&text, ", ",
                    OperationRate(report, static_cast<double>(tally.operations) * share), ", ",
                    FormatBytes(static_cast<int64_t>(static_cast<double>(tally.bytes) * share)),
                    "/s, ", FormatBytes(tally.bytes / tally.ok()), " per call on the wire");
  }
  absl::StrAppendFormat(
      &text,
      "\nclient    %.2f of %.3g cores busy, %s calls in flight at most, %s sent over 1 ms late\n",
      result.client_cores, result.usable_cores, FormatCount(result.most_in_flight),
      FormatCount(result.sent_late));
  absl::StrAppend(&text, CheckedText(step.verified));
  // The verdict of a search is about all of its steps, and has warnings of its own.
  if (report.slo.has_value()) text += WarningLines(step.warnings);
  absl::StrAppend(&text, "\n", TableText(LatencyTable(step)), "\n", TableText(StageTable(step)));
  if (!tally.kernels.empty()) absl::StrAppend(&text, "\n", TableText(KernelTable(step)));
  if (tally.latency_by_product.size() > 1) {
    absl::StrAppend(&text, "\n", TableText(ProductTable(report, step)));
  }
  return text;
}

std::string SummaryTable(const LoadReport& report) {
  TextTable table({{"step"},
                   {"rate", Align::kRight},
                   {"p50", Align::kRight},
                   {"p99", Align::kRight},
                   {"p99.9", Align::kRight},
                   {"failed", Align::kRight}});
  for (const ReportStep& step : report.steps) {
    const Histogram& latency = step.result.tally.latency;
    table.AddRow({step.name, absl::StrFormat("%.1f/s", step.result.rate),
                  FormatNanoseconds(latency.ValueAt(0.5)), FormatNanoseconds(latency.ValueAt(0.99)),
                  FormatNanoseconds(latency.ValueAt(0.999)),
                  FormatCount(step.result.tally.failed())});
  }
  return absl::StrCat("\n", table.Print());
}

std::string SloText(const SloFindings& slo) {
  return absl::StrCat("\nobjective ", slo.objective, "\nrule      ", slo.rule, "\n\n",
                      TableText(WindowTable(slo)));
}

}  // namespace

std::string ReportText(const LoadReport& report) {
  std::string text = HeadingText(report);
  for (const ReportStep& step : report.steps) text += StepText(report, step);
  if (report.steps.size() > 1) text += SummaryTable(report);
  const int64_t done = static_cast<int64_t>(report.steps.size());
  if (done < report.steps_planned) {
    absl::StrAppend(&text, "\ninterrupted: ", done, " of ", report.steps_planned,
                    " steps were begun\n");
  }
  if (report.slo.has_value()) text += SloText(*report.slo);
  return absl::StrCat(text, "\nverdict   ", report.Verdict(), "\n",
                      WarningLines(report.Warnings()));
}

}  // namespace gemmd
