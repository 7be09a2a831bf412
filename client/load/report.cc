// SPDX-License-Identifier: Apache-2.0
#include "client/load/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/gemmctl/text_table.h"

namespace gemmd {

int64_t ReportStep::CheckedOf(size_t product) const {
  const std::vector<int64_t>& checked = verified.checked_by_product;
  return product < checked.size() ? checked[product] : 0;
}

bool LoadReport::was_interrupted() const {
  return std::any_of(steps.begin(), steps.end(),
                     [](const ReportStep& step) { return step.result.was_interrupted; });
}

int64_t LoadReport::wrong() const {
  int64_t wrong = 0;
  for (const ReportStep& step : steps) wrong += step.verified.wrong;
  return wrong;
}

int64_t LoadReport::failed() const {
  int64_t failed = 0;
  for (const ReportStep& step : steps) failed += step.result.tally.failed();
  return failed;
}

std::vector<std::string> WarningsOf(const ReportStep& step, bool is_same_machine) {
  const StepResult& result = step.result;
  const Tally& tally = result.tally;
  std::vector<std::string> warnings;
  if (result.was_interrupted)
    warnings.push_back("interrupted: the window is shorter than asked for");
  if (tally.failed() > 0) {
    warnings.push_back(
        absl::StrCat("failed calls, left out of the latencies: ", CodesText(tally.calls_by_code)));
  }
  for (const auto& [code, message] : result.first_messages) {
    warnings.push_back(absl::StrCat("first ", absl::StatusCodeToString(code), ": ", message));
  }
  if (step.verified.wrong > 0) {
    warnings.push_back(absl::StrCat("wrong answers: ", step.verified.wrong, " of ",
                                    step.verified.checked, " checked; ",
                                    step.verified.first_error));
  }
  if (result.unsent > 0) {
    warnings.push_back(absl::StrCat(
        FormatCount(result.unsent),
        " calls were never sent, held by the limit of calls in flight: latencies are too low"));
  }
  if (step.is_open && !result.was_interrupted && result.rate < 0.95 * result.offered) {
    warnings.push_back(absl::StrFormat(
        "%.1f/s were answered of %.1f/s offered: latencies grow with the length of the run",
        result.rate, result.offered));
  }
  const int64_t blocked = tally.blocked.CountAbove(0);
  if (blocked > 0) {
    warnings.push_back(absl::StrCat(FormatCount(blocked),
                                    " calls waited for the limit of calls in flight, p99 ",
                                    FormatNanoseconds(tally.blocked.ValueAt(0.99))));
  }
  if (result.client_cores > 0.8 * result.usable_cores) {
    warnings.push_back(absl::StrFormat("the client is the limit: it kept %.1f of %.0f cores busy",
                                       result.client_cores, result.usable_cores));
  }
  const int64_t send_error_ns = tally.send_error.ValueAt(0.99);
  if (step.is_open && send_error_ns > 1'000'000) {
    warnings.push_back(absl::StrCat("the client is the limit: it sent 1 % of the calls more than ",
                                    FormatNanoseconds(send_error_ns),
                                    " behind their time (that time is in their latencies)"));
  }
  if (is_same_machine) {
    warnings.push_back("client and server share this machine: each takes time from the other");
  }
  if (tally.latency.count() < 1000) {
    warnings.push_back(
        absl::StrCat("only ", tally.latency.count(), " calls: the highest percentiles say little"));
  }
  return warnings;
}

namespace {

using Align = TextTable::Align;

std::string Heading(const LoadReport& report) {
  std::string text = absl::StrCat("gemmload ", report.version, ", ", report.started, "\n");
  for (const std::string& address : report.addresses) {
    absl::StrAppend(
        &text, "server    ", address,
        report.server_version.empty() ? "" : absl::StrCat(" (gemmd ", report.server_version, ")"),
        "\n");
  }
  absl::StrAppend(&text, "channels  ", report.channels, " for each server\n", "mix       ",
                  report.mix, ", operands ", report.operands, "\n", "arrivals  ", report.arrivals,
                  "\n");
  return text;
}

// Percentiles by both clocks, and how many calls are behind each.
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
  for (size_t i = 0; i < kStages; ++i) {
    AddSpread(table,
              absl::StrCat(kStageNames[i], i + 1 < kStages ? " (server)" : " (network, gRPC)"),
              tally.stages[i]);
  }
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

std::string StepText(const LoadReport& report, const ReportStep& step) {
  const StepResult& result = step.result;
  const Tally& tally = result.tally;
  std::string text = absl::StrFormat("\n== %s\n\n", step.name);
  absl::StrAppendFormat(&text, "calls     %s in %.3f s behind %.3f s of warm-up: %s\n",
                        FormatCount(tally.calls()), result.window_s, report.warmup_s,
                        CodesText(tally.calls_by_code));
  absl::StrAppendFormat(&text, "rate      %.1f/s of %.1f/s offered", result.rate, result.offered);
  const double seconds = result.window_s;
  if (seconds > 0 && tally.ok() > 0) {
    const double share = result.rate / static_cast<double>(tally.ok());
    absl::StrAppend(&text, ", ", FormatRate(static_cast<double>(tally.operations) * share), ", ",
                    FormatBytes(static_cast<int64_t>(static_cast<double>(tally.bytes) * share)),
                    "/s");
  }
  absl::StrAppendFormat(
      &text,
      "\nclient    %.2f of %.0f cores busy, %s calls in flight at most, %s sent over 1 ms late\n",
      result.client_cores, result.usable_cores, FormatCount(result.most_in_flight),
      FormatCount(result.sent_late));
  absl::StrAppendFormat(&text, "checked   %s answers, %s of them exactly: %s wrong\n\n",
                        FormatCount(step.verified.checked), FormatCount(step.verified.exact),
                        FormatCount(step.verified.wrong));
  absl::StrAppend(&text, LatencyTable(tally), "\n", StageTable(step));
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
  absl::StrAppend(&text, slo.rate > 0
                             ? absl::StrFormat("highest rate that holds: %.1f/s\n", slo.rate)
                             : std::string("no rate holds\n"));
  return text;
}

}  // namespace

std::string ReportText(const LoadReport& report) {
  std::string text = Heading(report);
  for (const ReportStep& step : report.steps) text += StepText(report, step);
  if (report.steps.size() > 1) text += SummaryTable(report);
  if (report.slo.has_value()) text += SloText(*report.slo);
  return text;
}

std::string ReportCsv(const LoadReport& report) {
  std::string text =
      "step,target,window_s,rate_per_s,offered_per_s,calls,failed,unsent,client_cores,mean_ns";
  for (const ReportedPercentile& p : kPercentiles) absl::StrAppend(&text, ",", p.name, "_ns");
  text += ",most_ns";
  for (const ReportedPercentile& p : kPercentiles)
    absl::StrAppend(&text, ",service_", p.name, "_ns");
  text += ",blocked_p99_ns,send_error_p99_ns";
  for (const char* stage : kStageNames) absl::StrAppend(&text, ",", stage, "_mean_ns");
  text += "\n";
  for (const ReportStep& step : report.steps) {
    const StepResult& result = step.result;
    const Tally& tally = result.tally;
    absl::StrAppendFormat(&text, "\"%s\",%g,%.6f,%.3f,%.3f,%d,%d,%d,%.3f,%.0f", step.name,
                          step.target, result.window_s, result.rate, result.offered, tally.calls(),
                          tally.failed(), result.unsent, result.client_cores,
                          tally.latency.MeanNs());
    for (const ReportedPercentile& p : kPercentiles)
      absl::StrAppend(&text, ",", tally.latency.ValueAt(p.fraction));
    absl::StrAppend(&text, ",", tally.latency.most_ns());
    for (const ReportedPercentile& p : kPercentiles)
      absl::StrAppend(&text, ",", tally.service.ValueAt(p.fraction));
    absl::StrAppend(&text, ",", tally.blocked.ValueAt(0.99), ",", tally.send_error.ValueAt(0.99));
    for (const Histogram& stage : tally.stages)
      absl::StrAppendFormat(&text, ",%.0f", stage.MeanNs());
    text += "\n";
  }
  return text;
}

}  // namespace gemmd
