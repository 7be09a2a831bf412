// SPDX-License-Identifier: Apache-2.0
//
// The report for spreadsheets.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/load/report/report.h"

namespace gemmd {

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
    absl::StrAppendFormat(&text, "\"%s\",%g,%.6f,%.3f,%.3f,%d,%d,%d,%.3f,%.0f",
                          absl::StrReplaceAll(step.name, {{"\"", "\"\""}}), step.target,
                          result.window_s, result.rate, result.offered, tally.calls(),
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
