// SPDX-License-Identifier: Apache-2.0
//
// The report for programs. `compare` reads it back.
#include <string>

#include "absl/strings/str_cat.h"
#include "client/load/report/report.h"

namespace gemmd {
namespace {

using Json = nlohmann::ordered_json;

enum class Detail { kPercentiles, kBuckets };

Json HistogramJson(const Histogram& histogram, Detail detail) {
  Json json = {{"count", histogram.count()},
               {"mean_ns", histogram.MeanNs()},
               {"least_ns", histogram.least_ns()},
               {"most_ns", histogram.most_ns()}};
  for (const ReportedPercentile& percentile : kPercentiles) {
    json[absl::StrCat(percentile.name, "_ns")] = histogram.ValueAt(percentile.fraction);
  }
  if (detail == Detail::kPercentiles) return json;
  Json& buckets = json["buckets"] = Json::array();
  for (const Histogram::Bucket& bucket : histogram.Buckets()) {
    buckets.push_back({bucket.value_ns, bucket.count});
  }
  return json;
}

Json CodesJson(const CallsByCode& calls_by_code) {
  Json json = Json::object();
  for (size_t i = 0; i < calls_by_code.size(); ++i) {
    if (calls_by_code[i] == 0) continue;
    json[absl::StatusCodeToString(static_cast<absl::StatusCode>(i))] = calls_by_code[i];
  }
  return json;
}

Json IntervalJson(const LoadInterval& interval) {
  return {{"from_s", static_cast<double>(interval.from_ns) * 1e-9},
          {"to_s", static_cast<double>(interval.to_ns) * 1e-9},
          {"in_flight", interval.in_flight},
          {"ok", interval.ok},
          {"failed", interval.failed},
          {"p50_ns", interval.p50_ns},
          {"p99_ns", interval.p99_ns},
          {"most_ns", interval.most_ns}};
}

Json KernelJson(const KernelTally& kernel) {
  Json json = {{"kernel", kernel.kernel},
               {"device", kernel.device},
               {"latency", HistogramJson(kernel.latency, Detail::kPercentiles)}};
  for (size_t i = 0; i < kCallStages; ++i) {
    json["stage_means_ns"][kStageNames[i]] = kernel.StageMeanNs(i);
  }
  return json;
}

Json ServerJson(const ReportedServer& server) {
  Json json = {
      {"address", server.address}, {"version", server.version}, {"devices", Json::array()}};
  for (const ReportedDevice& device : server.devices) {
    json["devices"].push_back({{"name", device.name}, {"description", device.text}});
  }
  return json;
}

Json SloJson(const SloFindings& slo) {
  const SloAnswer& answer = slo.answer;
  Json json = {{"objective", slo.objective},
               {"rule", slo.rule},
               {"verdict", slo.Verdict()},
               {"conclusive", answer.is_conclusive()},
               {"interrupted", answer.end == SloAnswer::End::kInterrupted},
               {"rate_per_s", answer.rate},
               {"confidence", kSloConfidence},
               {"interval_per_s", nullptr},
               {"windows_discarded", answer.discarded()},
               {"windows", Json::array()}};
  if (answer.high > 0) json["interval_per_s"] = {answer.low, answer.high};
  for (const SloWindow& window : answer.windows) {
    json["windows"].push_back({{"rate_per_s", window.rate},
                               {"verdict", std::string(WindowVerdictName(window.verdict))},
                               {"why", window.what}});
  }
  return json;
}

Json StepJson(const LoadReport& report, const ReportStep& step) {
  const StepResult& result = step.result;
  const Tally& tally = result.tally;
  Json json = {{"name", step.name},
               {"loop", step.is_open ? "open" : "closed"},
               {"target", step.target},
               {"window_s", result.window_s},
               {"rate_per_s", result.rate},
               {"offered_per_s", result.offered},
               {"calls", tally.calls()},
               {"calls_by_status", CodesJson(tally.calls_by_code)},
               {"unsent", result.unsent},
               {"sent_over_1ms_late", result.sent_late},
               {"most_in_flight", result.most_in_flight},
               {"client_cores", result.client_cores},
               {"usable_cores", result.usable_cores},
               {"interrupted", result.was_interrupted},
               {"operations", tally.operations},
               {"bytes", tally.bytes},
               {"bytes_per_call", tally.ok() > 0 ? tally.bytes / tally.ok() : 0},
               {"bytes_per_s", tally.ok() > 0 ? static_cast<double>(tally.bytes) * result.rate /
                                                    static_cast<double>(tally.ok())
                                              : 0},
               {"latency", HistogramJson(tally.latency, Detail::kBuckets)},
               {"service", HistogramJson(tally.service, Detail::kBuckets)},
               {"blocked", HistogramJson(tally.blocked, Detail::kPercentiles)},
               {"send_error", HistogramJson(tally.send_error, Detail::kPercentiles)},
               {"failed_latency", HistogramJson(tally.failed_latency, Detail::kPercentiles)}};
  for (size_t i = 0; i < kCallStages; ++i) {
    json["stages"][kStageNames[i]] = HistogramJson(tally.stages[i], Detail::kPercentiles);
  }
  json["products"] = Json::object();
  for (size_t i = 0; i < tally.latency_by_product.size(); ++i) {
    Json& product = json["products"][report.products[i]] =
        HistogramJson(tally.latency_by_product[i], Detail::kPercentiles);
    product["checked"] = step.CheckedOf(i);
  }
  json["kernels"] = Json::array();
  for (const KernelTally& kernel : tally.kernels) json["kernels"].push_back(KernelJson(kernel));
  json["intervals"] = Json::array();
  for (const LoadInterval& interval : result.intervals) {
    json["intervals"].push_back(IntervalJson(interval));
  }
  json["verification"] = {{"checked", step.verified.checked},
                          {"exact", step.verified.exact},
                          {"wrong", step.verified.wrong},
                          {"let_go", step.verified.let_go},
                          {"first_error", step.verified.first_error}};
  json["warnings"] = step.warnings;
  return json;
}

}  // namespace

Json ReportJson(const LoadReport& report) {
  Json json = {{"gemmload", report.version},
               {"client",
                {{"host", report.client.host},
                 {"cpu", report.client.cpu},
                 {"cores", report.client.cores},
                 {"usable_cores", report.client.usable_cores}}},
               {"servers", Json::array()},
               {"started", report.started},
               {"command", report.command},
               {"channels", report.channels},
               {"owners", report.owners},
               {"streams", report.streams},
               {"same_machine", report.is_same_machine},
               {"mix", report.mix},
               {"operands", report.operands},
               {"arrivals", report.arrivals},
               {"operation_unit", report.operation_unit},
               {"warmup_s", report.warmup_s},
               {"steps_planned", report.steps_planned},
               {"interrupted", report.was_interrupted()},
               {"verdict", report.Verdict()},
               {"warnings", report.Warnings()},
               {"steps", Json::array()}};
  for (const ReportedServer& server : report.servers) {
    json["servers"].push_back(ServerJson(server));
  }
  for (const ReportStep& step : report.steps) json["steps"].push_back(StepJson(report, step));
  if (report.slo.has_value()) json["slo"] = SloJson(*report.slo);
  return json;
}

}  // namespace gemmd
