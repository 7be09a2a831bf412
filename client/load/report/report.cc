// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/matrix/reference.h"
#include "client/terminal/text_table.h"

namespace gemmd {

int64_t ReportStep::CheckedOf(size_t product) const {
  const std::vector<int64_t>& checked = verified.checked_by_product;
  return product < checked.size() ? checked[product] : 0;
}

std::string SloFindings::Verdict() const {
  const std::string text = absl::StrFormat("%.1f/s", rate);
  if (was_interrupted) {
    return rate > 0 ? absl::StrCat("search interrupted; at least ", text, " holds")
                    : "search interrupted before any rate held";
  }
  return rate > 0 ? absl::StrCat("highest rate that holds: ", text) : "no rate holds";
}

std::string ReportedServer::Text() const {
  return version.empty() ? address : absl::StrCat(address, " (gemmd ", version, ")");
}

bool LoadReport::was_interrupted() const {
  return (slo.has_value() && slo->was_interrupted) ||
         static_cast<int64_t>(steps.size()) < steps_planned ||
         std::any_of(steps.begin(), steps.end(),
                     [](const ReportStep& step) { return step.result.was_interrupted; });
}

int64_t LoadReport::wrong() const {
  int64_t wrong = 0;
  for (const ReportStep& step : steps) wrong += step.verified.wrong;
  return wrong;
}

int64_t LoadReport::calls() const {
  int64_t calls = 0;
  for (const ReportStep& step : steps) calls += step.result.tally.calls();
  return calls;
}

int64_t LoadReport::failed() const {
  int64_t failed = 0;
  for (const ReportStep& step : steps) failed += step.result.tally.failed();
  return failed;
}

int64_t LoadReport::unsent() const {
  int64_t unsent = 0;
  for (const ReportStep& step : steps) unsent += step.result.unsent;
  return unsent;
}

std::string OperationUnit(const Mix& mix) {
  const bool has_integers = std::any_of(mix.begin(), mix.end(), [](const LoadProduct& product) {
    return DefaultAccumulationType(product.type) == v1::ELEMENT_TYPE_S32;
  });
  const bool has_sparse = std::any_of(mix.begin(), mix.end(),
                                      [](const LoadProduct& product) { return product.is_sparse; });
  return absl::StrCat(has_integers ? "OP/s" : "FLOP/s", has_sparse ? " (dense-equivalent)" : "");
}

namespace {

using Align = TextTable::Align;

std::string Heading(const LoadReport& report) {
  std::string text = absl::StrCat("gemmload ", report.version, ", ", report.started, "\n");
  for (const ReportedServer& server : report.servers) {
    absl::StrAppend(&text, "server    ", server.Text(), "\n");
  }
  if (report.owners > 1) {
    absl::StrAppend(&text, "owners    ", report.owners, " of each server, each with a session\n");
  }
  absl::StrAppend(&text, "channels  ", report.channels,
                  report.owners > 1 ? " for each owner\n" : " for each server\n", "mix       ",
                  report.mix, ", operands ", report.operands, "\n", "arrivals  ", report.arrivals,
                  "\n");
  return text;
}

// Percentiles by both clocks, and how many calls lie above each.
std::string LatencyTable(const Tally& tally) {
  TextTable table({{"latency"},
                   {"from intended send", Align::kRight},
                   {"from actual send", Align::kRight},
                   {"calls above", Align::kRight}});
  const int64_t count = tally.latency.count();
  const auto add = [&](absl::string_view name, int64_t latency, int64_t service,
                       const std::string& above) {
    table.AddRow(
        {std::string(name), FormatNanoseconds(latency), FormatNanoseconds(service), above});
  };
  add("least", tally.latency.least_ns(), tally.service.least_ns(), "");
  for (const ReportedPercentile& percentile : kPercentiles) {
    const int64_t latency = tally.latency.ValueAt(percentile.fraction);
    add(percentile.name, latency, tally.service.ValueAt(percentile.fraction),
        FormatCount(tally.latency.CountAbove(latency)));
  }
  add("most", tally.latency.most_ns(), tally.service.most_ns(), "0");
  add("mean", static_cast<int64_t>(tally.latency.MeanNs()),
      static_cast<int64_t>(tally.service.MeanNs()), absl::StrCat("of ", FormatCount(count)));
  return table.Print();
}

void AddSpread(TextTable& table, absl::string_view name, const Histogram& histogram) {
  table.AddRow({std::string(name), FormatNanoseconds(static_cast<int64_t>(histogram.MeanNs())),
                FormatNanoseconds(histogram.ValueAt(0.5)),
                FormatNanoseconds(histogram.ValueAt(0.99)),
                FormatNanoseconds(histogram.most_ns())});
}

std::string StageTable(const ReportStep& step) {
  const Tally& tally = step.result.tally;
  TextTable table({{"stage"},
                   {"mean", Align::kRight},
                   {"p50", Align::kRight},
                   {"p99", Align::kRight},
                   {"most", Align::kRight}});
  if (step.is_open) {
    AddSpread(table, "blocked (client)", tally.blocked);
    AddSpread(table, "send error (client)", tally.send_error);
  }
  for (size_t i = 0; i < kCallStages; ++i) {
    AddSpread(table,
              absl::StrCat(kStageNames[i], i + 1 < kCallStages ? " (server)" : " (network, gRPC)"),
              tally.stages[i]);
  }
  if (tally.failed() > 0) AddSpread(table, "latency of failed calls", tally.failed_latency);
  return table.Print();
}

std::string ProductTable(const LoadReport& report, const ReportStep& step) {
  const Tally& tally = step.result.tally;
  TextTable table({{"product"},
                   {"calls", Align::kRight},
                   {"checked", Align::kRight},
                   {"p50", Align::kRight},
                   {"p99", Align::kRight},
                   {"most", Align::kRight}});
  for (size_t i = 0; i < tally.latency_by_product.size(); ++i) {
    const Histogram& latency = tally.latency_by_product[i];
    table.AddRow({report.products[i], FormatCount(latency.count()), FormatCount(step.CheckedOf(i)),
                  FormatNanoseconds(latency.ValueAt(0.5)), FormatNanoseconds(latency.ValueAt(0.99)),
                  FormatNanoseconds(latency.most_ns())});
  }
  return table.Print();
}

std::string OperationRate(const LoadReport& report, double per_second) {
  return absl::StrReplaceAll(FormatRate(per_second), {{"FLOP/s", report.operation_unit}});
}

std::string CheckedText(const VerifierCounts& verified) {
  if (!verified.is_asked) return "checked   no answer (--verify 0)\n\n";
  const std::string let_go =
      verified.let_go == 0 ? "" : absl::StrCat("; ", FormatCount(verified.let_go), " let go");
  return absl::StrCat("checked   ", FormatCount(verified.checked), " answers, ",
                      FormatCount(verified.exact),
                      " of them exactly: ", FormatCount(verified.wrong), " wrong", let_go, "\n\n");
}

std::string StepText(const LoadReport& report, const ReportStep& step) {
  const StepResult& result = step.result;
  const Tally& tally = result.tally;
  std::string text = absl::StrFormat("\n== %s\n\n", step.name);
  absl::StrAppendFormat(&text, "calls     %s in %.3f s after %.3f s of warm-up: %s\n",
                        FormatCount(tally.calls()), result.window_s, report.warmup_s,
                        CodesText(tally.calls_by_code));
  absl::StrAppendFormat(&text, "rate      %.1f/s of %.1f/s offered", result.rate, result.offered);
  const double seconds = result.window_s;
  if (seconds > 0 && tally.ok() > 0) {
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
  absl::StrAppend(&text, CheckedText(step.verified), LatencyTable(tally), "\n", StageTable(step));
  if (tally.latency_by_product.size() > 1) absl::StrAppend(&text, "\n", ProductTable(report, step));
  if (!step.warnings.empty()) text += "\n";
  for (const std::string& warning : step.warnings)
    absl::StrAppend(&text, "warning: ", warning, "\n");
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
  std::string text = absl::StrCat("\nobjective ", slo.objective, "\nrule      ", slo.rule, "\n");
  for (const std::string& trial : slo.trials) absl::StrAppend(&text, "  ", trial, "\n");
  absl::StrAppend(&text, slo.Verdict(), "\n");
  return text;
}

}  // namespace

std::string ReportText(const LoadReport& report) {
  std::string text = Heading(report);
  for (const ReportStep& step : report.steps) text += StepText(report, step);
  if (report.steps.size() > 1) text += SummaryTable(report);
  const int64_t done = static_cast<int64_t>(report.steps.size());
  if (done < report.steps_planned) {
    absl::StrAppend(&text, "\ninterrupted: ", done, " of ", report.steps_planned,
                    " steps were begun\n");
  }
  if (report.slo.has_value()) text += SloText(*report.slo);
  return text;
}

}  // namespace gemmd
