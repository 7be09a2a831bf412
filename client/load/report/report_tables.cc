// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/report_tables.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

std::string TimeText(double ns) { return FormatNanoseconds(std::llround(ns)); }

std::vector<std::string> SpreadRow(std::string name, const Histogram& histogram) {
  return {std::move(name), TimeText(histogram.MeanNs()), FormatNanoseconds(histogram.ValueAt(0.5)),
          FormatNanoseconds(histogram.ValueAt(0.99)), FormatNanoseconds(histogram.most_ns())};
}

}  // namespace

ReportTable LatencyTable(const ReportStep& step) {
  const Tally& tally = step.result.tally;
  ReportTable table = {{"latency", "from intended send", "from actual send", "calls above"}};
  const auto add = [&](absl::string_view name, int64_t latency, int64_t service,
                       const std::string& above) {
    table.rows.push_back(
        {std::string(name), FormatNanoseconds(latency), FormatNanoseconds(service), above});
  };
  add("least", tally.latency.least_ns(), tally.service.least_ns(), "");
  for (const ReportedPercentile& percentile : kPercentiles) {
    const int64_t latency = tally.latency.ValueAt(percentile.fraction);
    add(percentile.name, latency, tally.service.ValueAt(percentile.fraction),
        FormatCount(tally.latency.CountAbove(latency)));
  }
  add("most", tally.latency.most_ns(), tally.service.most_ns(), "0");
  add("mean", std::llround(tally.latency.MeanNs()), std::llround(tally.service.MeanNs()),
      absl::StrCat("of ", FormatCount(tally.latency.count())));
  return table;
}

ReportTable StageTable(const ReportStep& step) {
  const Tally& tally = step.result.tally;
  ReportTable table = {{"stage", "mean", "p50", "p99", "most"}};
  if (step.is_open) {
    table.rows.push_back(SpreadRow("blocked (client)", tally.blocked));
    table.rows.push_back(SpreadRow("send error (client)", tally.send_error));
  }
  for (size_t i = 0; i < kCallStages; ++i) {
    const char* const where = i + 1 < kCallStages ? " (server)" : " (network, gRPC)";
    table.rows.push_back(SpreadRow(absl::StrCat(kStageNames[i], where), tally.stages[i]));
  }
  if (tally.failed() > 0) {
    table.rows.push_back(SpreadRow("latency of failed calls", tally.failed_latency));
  }
  return table;
}

ReportTable KernelTable(const ReportStep& step) {
  ReportTable table = {{"kernel", "device", "calls", "p50", "p99"}};
  table.text_columns = 2;
  for (const char* stage : kStageNames) table.headings.push_back(absl::StrCat("mean ", stage));
  for (const KernelTally& kernel : step.result.tally.kernels) {
    std::vector<std::string> row = {kernel.kernel.empty() ? "(unnamed)" : kernel.kernel,
                                    kernel.device, FormatCount(kernel.latency.count()),
                                    FormatNanoseconds(kernel.latency.ValueAt(0.5)),
                                    FormatNanoseconds(kernel.latency.ValueAt(0.99))};
    for (size_t i = 0; i < kCallStages; ++i) row.push_back(TimeText(kernel.StageMeanNs(i)));
    table.rows.push_back(std::move(row));
  }
  return table;
}

ReportTable ProductTable(const LoadReport& report, const ReportStep& step) {
  const Tally& tally = step.result.tally;
  ReportTable table = {{"product", "calls", "checked", "p50", "p99", "most"}};
  for (size_t i = 0; i < tally.latency_by_product.size(); ++i) {
    const Histogram& latency = tally.latency_by_product[i];
    table.rows.push_back({report.products[i], FormatCount(latency.count()),
                          FormatCount(step.CheckedOf(i)), FormatNanoseconds(latency.ValueAt(0.5)),
                          FormatNanoseconds(latency.ValueAt(0.99)),
                          FormatNanoseconds(latency.most_ns())});
  }
  return table;
}

ReportTable WindowTable(const SloFindings& slo) {
  ReportTable table = {{"window", "rate", "verdict", "why"}};
  table.text_columns = table.headings.size();
  for (const SloWindow& window : slo.answer.windows) {
    table.rows.push_back({absl::StrCat(table.rows.size() + 1),
                          absl::StrFormat("%.1f/s", window.rate),
                          std::string(WindowVerdictName(window.verdict)), window.what});
  }
  return table;
}

}  // namespace gemmd
