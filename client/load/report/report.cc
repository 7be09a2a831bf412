// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/load/report/html_report.h"
#include "client/matrix/verify.h"
#include "client/output_file.h"
#include "client/terminal/text.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

int64_t ReportStep::CheckedOf(size_t product) const {
  const std::vector<int64_t>& checked = verified.checked_by_product;
  return product < checked.size() ? checked[product] : 0;
}

std::string SloFindings::Verdict() const {
  using End = SloAnswer::End;
  const std::string rate = absl::StrFormat("%.1f/s", answer.rate);
  const std::string interval = absl::StrFormat("%.1f/s to %.1f/s", answer.low, answer.high);
  switch (answer.end) {
    case End::kFound:
      return absl::StrCat("highest rate that holds: ", rate, " (95 % interval ", interval, ")");
    case End::kEveryRate: return absl::StrCat("every tried rate holds, up to ", rate);
    case End::kNoRate: return "no rate holds";
    case End::kHopeless: return absl::StrCat("no rate holds: ", answer.windows.back().what);
    case End::kClientLimit:
      return answer.rate > 0 ? absl::StrCat("inconclusive: ", rate,
                                            " holds, and the client cannot send much more in time")
                             : "inconclusive: the client cannot send any rate in time";
    case End::kTooNoisy:
      return absl::StrCat("inconclusive: the highest rate that holds is somewhere in ", interval,
                          ", and the windows contradict each other");
    case End::kInterrupted: break;
  }
  return answer.rate > 0 ? absl::StrCat("search interrupted; at least ", rate, " holds")
                         : "search interrupted before any rate held";
}

std::string ReportedServer::Text() const {
  return version.empty() ? address : absl::StrCat(address, " (gemmd ", version, ")");
}

ReportedDevice DescribeDevice(const v1::Device& device) {
  std::string text = absl::StrCat(device.name(), ": ", device.description());
  if (!device.chip().empty()) absl::StrAppend(&text, ", ", device.chip());
  if (device.multiprocessors() > 0) {
    absl::StrAppend(&text, ", ", device.multiprocessors(), " multiprocessors");
  }
  if (device.threads() > 0) {
    absl::StrAppend(&text, ", ", device.threads(), device.threads() == 1 ? " thread" : " threads");
  }
  return {device.name(), text};
}

std::string ClientText(const LoadReport& report) {
  const ClientMachine& client = report.client;
  return absl::StrFormat("gemmload %s on %s%s%s, %.3g of %d cores", report.version,
                         client.host.empty() ? "an unnamed host" : client.host,
                         client.cpu.empty() ? "" : ", ", client.cpu, client.usable_cores,
                         client.cores);
}

bool LoadReport::was_interrupted() const {
  return (slo.has_value() && slo->answer.end == SloAnswer::End::kInterrupted) ||
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

std::string LoadReport::Verdict() const {
  if (slo.has_value()) return slo->Verdict();
  CallsByCode codes = {};
  int64_t checked = 0;
  for (const ReportStep& step : steps) {
    checked += step.verified.checked;
    for (size_t i = 0; i < codes.size(); ++i) codes[i] += step.result.tally.calls_by_code[i];
  }
  std::vector<std::string> faults;
  if (wrong() > 0)
    faults.push_back(absl::StrCat(wrong(), " wrong of ", checked, " checked answers"));
  if (failed() > 0) faults.push_back(absl::StrCat("failed calls: ", FailedCodesText(codes)));
  if (unsent() > 0) faults.push_back(absl::StrCat(FormatCount(unsent()), " calls never sent"));
  if (!faults.empty()) return absl::StrJoin(faults, "; ");
  if (calls() == 0) return "no call was made";
  return absl::StrCat("all ", FormatCount(calls()), " calls were sent and answered");
}

std::string OperationUnit(const Mix& mix) {
  const bool has_integers = std::any_of(mix.begin(), mix.end(), [](const LoadProduct& product) {
    return DefaultAccumulationType(product.type, product.type) == v1::ELEMENT_TYPE_S32;
  });
  const bool has_sparse = std::any_of(mix.begin(), mix.end(),
                                      [](const LoadProduct& product) { return product.is_sparse; });
  return absl::StrCat(has_integers ? "OP/s" : "FLOP/s", has_sparse ? " (dense-equivalent)" : "");
}

namespace {

constexpr int64_t kLateNs =
    1'000'000;  // Send delay of an open loop above which calls count as late.

constexpr char kSharedMachine[] = "client and server share this machine: each slows down the other";

// Whether more calls were unanswered at the end of the window than latency explains: a server that
// keeps up holds only the calls that arrive within its latency.
bool FallsBehind(const StepResult& result) {
  const Tally& tally = result.tally;
  const double offered = static_cast<double>(tally.calls() + result.unsent);
  const double behind =
      offered - static_cast<double>(tally.failed()) - result.rate * result.window_s;
  // By Little's law, rate x mean latency calls are in flight; a server that falls further and
  // further behind shows half its backlog. A run no longer than the shortest latency leaves all
  // calls open.
  const double in_mean = 1.5 * result.rate * tally.latency.MeanNs() * 1e-9;
  const double in_min = result.offered * static_cast<double>(tally.latency.min_ns()) * 1e-9;
  return behind > 0.05 * offered && behind > in_mean && behind > in_min + 1;
}

void WarnOfChecks(const ReportStep& step, std::vector<std::string>& warnings) {
  const VerifierCounts& verified = step.verified;
  if (verified.wrong > 0) {
    warnings.push_back(absl::StrCat("wrong answers: ", verified.wrong, " of ", verified.checked,
                                    " checked; ", verified.first_error));
  }
  if (verified.is_requested && verified.checked == 0 && step.result.tally.ok() > 0) {
    warnings.push_back("no answer was checked");
  } else if (verified.skipped > verified.checked) {
    warnings.push_back(absl::StrCat(
        FormatCount(verified.skipped), " answers came faster than they could be checked, ",
        FormatCount(verified.checked), " were: a smaller share (--verify) spreads the checks"));
  }
}

void WarnOfClient(const ReportStep& step, std::vector<std::string>& warnings) {
  const StepResult& result = step.result;
  if (result.IsClientBusy()) {
    warnings.push_back(absl::StrFormat("the client is the limit: it kept %.1f of %.3g cores busy",
                                       result.client_cores, result.usable_cores));
  }
  const int64_t send_error_ns = result.tally.send_error.ValueAt(0.99);
  if (step.is_open && send_error_ns > kLateNs) {
    warnings.push_back(absl::StrCat("the client is the limit: it sent 1 % of the calls more than ",
                                    FormatNanoseconds(send_error_ns),
                                    " after they were due (that time is in their latencies)"));
  }
}

}  // namespace

std::vector<std::string> WarningsOf(const ReportStep& step, bool is_same_machine) {
  const StepResult& result = step.result;
  const Tally& tally = result.tally;
  std::vector<std::string> warnings;
  if (result.was_interrupted)
    warnings.push_back("interrupted: the window is shorter than requested");
  if (tally.failed() > 0) {
    warnings.push_back(absl::StrCat("failed calls, left out of the latencies: ",
                                    FailedCodesText(tally.calls_by_code)));
  }
  for (const auto& [code, message] : result.first_messages) {
    warnings.push_back(absl::StrCat("first ", absl::StatusCodeToString(code), ": ", message));
  }
  WarnOfChecks(step, warnings);
  if (result.unsent > 0) {
    warnings.push_back(absl::StrCat(
        FormatCount(result.unsent),
        " calls were never sent, held by the limit of calls in flight: latencies are too low"));
  }
  if (step.is_open && !result.was_interrupted && FallsBehind(result)) {
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
  WarnOfClient(step, warnings);
  if (is_same_machine) {
    warnings.push_back(kSharedMachine);
  }
  if (tally.latency.count() < 1000) {
    warnings.push_back(
        absl::StrCat("only ", tally.latency.count(), " calls: the highest percentiles say little"));
  }
  return warnings;
}

std::vector<std::string> SloFindings::Warnings(bool is_same_machine) const {
  std::vector<std::string> warnings;
  if (is_same_machine) warnings.push_back(kSharedMachine);
  const auto first =
      std::find_if(answer.windows.begin(), answer.windows.end(),
                   [](const auto& one) { return one.verdict == WindowVerdict::kDiscarded; });
  if (first != answer.windows.end()) {
    warnings.push_back(absl::StrCat(answer.discarded(), " of ", answer.windows.size(),
                                    " windows were discarded, first: ", first->what));
  }
  if (answer.end == SloAnswer::End::kTooNoisy) {
    warnings.push_back("a longer --duration makes windows longer and more consistent");
  }
  return warnings;
}

std::vector<std::string> LoadReport::Warnings() const {
  if (slo.has_value()) return slo->Warnings(is_same_machine);
  std::vector<std::string> warnings;
  bool is_shared = false;
  for (const ReportStep& step : steps) {
    for (const std::string& warning : step.warnings) {
      if (warning == kSharedMachine) {
        is_shared = true;  // Reported once, because it applies to every step.
      } else {
        warnings.push_back(steps.size() > 1 ? absl::StrCat(step.name, ": ", warning) : warning);
      }
    }
  }
  if (is_shared) warnings.push_back(kSharedMachine);
  return warnings;
}

std::string RoundedTime(double ns) { return FormatNanoseconds(std::llround(ns)); }

namespace {

using Align = TextTable::Align;

std::vector<std::string> SpreadRow(std::string name, const Histogram& histogram) {
  return {std::move(name), RoundedTime(histogram.MeanNs()),
          FormatNanoseconds(histogram.ValueAt(0.5)), FormatNanoseconds(histogram.ValueAt(0.99)),
          FormatNanoseconds(histogram.max_ns())};
}

}  // namespace

TextTable LatencyTable(const ReportStep& step) {
  const Tally& tally = step.result.tally;
  TextTable table({{"latency"},
                   {"from intended send", Align::kRight},
                   {"from actual send", Align::kRight},
                   {"calls above", Align::kRight}});
  const auto add = [&](absl::string_view name, int64_t latency, int64_t service,
                       const std::string& above) {
    table.AddRow(
        {std::string(name), FormatNanoseconds(latency), FormatNanoseconds(service), above});
  };
  add("least", tally.latency.min_ns(), tally.service.min_ns(), "");
  for (const ReportedPercentile& percentile : kPercentiles) {
    const int64_t latency = tally.latency.ValueAt(percentile.fraction);
    add(percentile.name, latency, tally.service.ValueAt(percentile.fraction),
        FormatCount(tally.latency.CountAbove(latency)));
  }
  add("most", tally.latency.max_ns(), tally.service.max_ns(), "0");
  add("mean", std::llround(tally.latency.MeanNs()), std::llround(tally.service.MeanNs()),
      absl::StrCat("of ", FormatCount(tally.latency.count())));
  return table;
}

TextTable StageTable(const ReportStep& step) {
  const Tally& tally = step.result.tally;
  TextTable table({{"stage"},
                   {"mean", Align::kRight},
                   {"p50", Align::kRight},
                   {"p99", Align::kRight},
                   {"most", Align::kRight}});
  if (step.is_open) {
    table.AddRow(SpreadRow("blocked (client)", tally.blocked));
    table.AddRow(SpreadRow("send error (client)", tally.send_error));
  }
  for (size_t i = 0; i < kCallStages; ++i) {
    const char* const where = i + 1 < kCallStages ? " (server)" : " (network, gRPC)";
    table.AddRow(SpreadRow(absl::StrCat(kStageNames[i], where), tally.stages[i]));
  }
  if (tally.failed() > 0) {
    table.AddRow(SpreadRow("latency of failed calls", tally.failed_latency));
  }
  return table;
}

TextTable KernelTable(const ReportStep& step) {
  std::vector<TextTable::Column> columns = {{"kernel"},
                                            {"device"},
                                            {"calls", Align::kRight},
                                            {"p50", Align::kRight},
                                            {"p99", Align::kRight}};
  for (const char* stage : kStageNames) {
    columns.push_back({absl::StrCat("mean ", stage), Align::kRight});
  }
  TextTable table(std::move(columns));
  for (const KernelTally& kernel : step.result.tally.kernels) {
    std::vector<std::string> row = {kernel.kernel.empty() ? "(unnamed)" : kernel.kernel,
                                    kernel.device, FormatCount(kernel.latency.count()),
                                    FormatNanoseconds(kernel.latency.ValueAt(0.5)),
                                    FormatNanoseconds(kernel.latency.ValueAt(0.99))};
    for (size_t i = 0; i < kCallStages; ++i) row.push_back(RoundedTime(kernel.StageMeanNs(i)));
    table.AddRow(std::move(row));
  }
  return table;
}

TextTable ProductTable(const LoadReport& report, const ReportStep& step) {
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
                  FormatNanoseconds(latency.max_ns())});
  }
  return table;
}

TextTable WindowTable(const SloFindings& slo) {
  TextTable table({{"window"}, {"rate"}, {"verdict"}, {"why"}});
  for (const SloWindow& window : slo.answer.windows) {
    table.AddRow({absl::StrCat(table.rows().size() + 1), absl::StrFormat("%.1f/s", window.rate),
                  std::string(WindowVerdictName(window.verdict)), window.what});
  }
  return table;
}

namespace {

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
  if (!verified.is_requested) return "checked   no answer (--verify 0)\n";
  const std::string skipped =
      verified.skipped == 0 ? "" : absl::StrCat("; ", FormatCount(verified.skipped), " skipped");
  return absl::StrCat("checked   ", FormatCount(verified.checked), " answers, ",
                      FormatCount(verified.exact),
                      " of them exactly: ", FormatCount(verified.wrong), " wrong", skipped, "\n");
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
      result.client_cores, result.usable_cores, FormatCount(result.max_in_flight),
      FormatCount(result.sent_late));
  absl::StrAppend(&text, CheckedText(step.verified));
  // In a search, the verdict covers all steps and has its own warnings.
  if (report.slo.has_value()) text += WarningLines(step.warnings);
  absl::StrAppend(&text, "\n", LatencyTable(step).Print(), "\n", StageTable(step).Print());
  if (!tally.kernels.empty()) absl::StrAppend(&text, "\n", KernelTable(step).Print());
  if (tally.latency_by_product.size() > 1) {
    absl::StrAppend(&text, "\n", ProductTable(report, step).Print());
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
                      WindowTable(slo).Print());
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

namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson HistogramJson(const Histogram& histogram) {
  OrderedJson json = {{"count", histogram.count()},
                      {"mean_ns", histogram.MeanNs()},
                      {"least_ns", histogram.min_ns()},
                      {"most_ns", histogram.max_ns()}};
  for (const ReportedPercentile& percentile : kPercentiles) {
    json[absl::StrCat(percentile.name, "_ns")] = histogram.ValueAt(percentile.fraction);
  }
  return json;
}

OrderedJson WithBuckets(const Histogram& histogram) {
  OrderedJson json = HistogramJson(histogram);
  OrderedJson& buckets = json["buckets"] = OrderedJson::array();
  for (const Histogram::Bucket& bucket : histogram.Buckets()) {
    buckets.push_back({bucket.value_ns, bucket.count});
  }
  return json;
}

OrderedJson CodesJson(const CallsByCode& calls_by_code) {
  OrderedJson json = OrderedJson::object();
  for (size_t i = 0; i < calls_by_code.size(); ++i) {
    if (calls_by_code[i] == 0) continue;
    json[absl::StatusCodeToString(static_cast<absl::StatusCode>(i))] = calls_by_code[i];
  }
  return json;
}

OrderedJson IntervalJson(const LoadInterval& interval) {
  return {{"from_s", static_cast<double>(interval.from_ns) * 1e-9},
          {"to_s", static_cast<double>(interval.to_ns) * 1e-9},
          {"in_flight", interval.in_flight},
          {"ok", interval.ok},
          {"failed", interval.failed},
          {"p50_ns", interval.p50_ns},
          {"p99_ns", interval.p99_ns},
          {"most_ns", interval.max_ns}};
}

OrderedJson KernelJson(const KernelTally& kernel) {
  OrderedJson json = {{"kernel", kernel.kernel},
                      {"device", kernel.device},
                      {"latency", HistogramJson(kernel.latency)}};
  for (size_t i = 0; i < kCallStages; ++i) {
    json["stage_means_ns"][kStageNames[i]] = kernel.StageMeanNs(i);
  }
  return json;
}

OrderedJson ServerJson(const ReportedServer& server) {
  OrderedJson json = {
      {"address", server.address}, {"version", server.version}, {"devices", OrderedJson::array()}};
  for (const ReportedDevice& device : server.devices) {
    json["devices"].push_back({{"name", device.name}, {"description", device.text}});
  }
  return json;
}

OrderedJson SloJson(const SloFindings& slo) {
  const SloAnswer& answer = slo.answer;
  OrderedJson json = {{"objective", slo.objective},
                      {"rule", slo.rule},
                      {"verdict", slo.Verdict()},
                      {"conclusive", answer.is_conclusive()},
                      {"interrupted", answer.end == SloAnswer::End::kInterrupted},
                      {"rate_per_s", answer.rate},
                      {"confidence", kSloConfidence},
                      {"interval_per_s", nullptr},
                      {"windows_discarded", answer.discarded()},
                      {"windows", OrderedJson::array()}};
  if (answer.high > 0) json["interval_per_s"] = {answer.low, answer.high};
  for (const SloWindow& window : answer.windows) {
    json["windows"].push_back({{"rate_per_s", window.rate},
                               {"verdict", std::string(WindowVerdictName(window.verdict))},
                               {"why", window.what}});
  }
  return json;
}

OrderedJson StepJson(const LoadReport& report, const ReportStep& step) {
  const StepResult& result = step.result;
  const Tally& tally = result.tally;
  OrderedJson json = {
      {"name", step.name},
      {"loop", step.is_open ? "open" : "closed"},
      {"target", step.target},
      {"window_s", result.window_s},
      {"rate_per_s", result.rate},
      {"offered_per_s", result.offered},
      {"calls", tally.calls()},
      {"calls_by_status", CodesJson(tally.calls_by_code)},
      {"unsent", result.unsent},
      {"sent_over_1ms_late", result.sent_late},
      {"most_in_flight", result.max_in_flight},
      {"client_cores", result.client_cores},
      {"usable_cores", result.usable_cores},
      {"interrupted", result.was_interrupted},
      {"operations", tally.operations},
      {"bytes", tally.bytes},
      {"bytes_per_call", tally.ok() > 0 ? tally.bytes / tally.ok() : 0},
      {"bytes_per_s", tally.ok() > 0 ? static_cast<double>(tally.bytes) * result.rate /
                                           static_cast<double>(tally.ok())
                                     : 0},
      {"latency", WithBuckets(tally.latency)},
      {"service", WithBuckets(tally.service)},
      {"blocked", HistogramJson(tally.blocked)},
      {"send_error", HistogramJson(tally.send_error)},
      {"failed_latency", HistogramJson(tally.failed_latency)}};
  for (size_t i = 0; i < kCallStages; ++i) {
    json["stages"][kStageNames[i]] = HistogramJson(tally.stages[i]);
  }
  json["products"] = OrderedJson::object();
  for (size_t i = 0; i < tally.latency_by_product.size(); ++i) {
    OrderedJson& product = json["products"][report.products[i]] =
        HistogramJson(tally.latency_by_product[i]);
    product["checked"] = step.CheckedOf(i);
  }
  json["kernels"] = OrderedJson::array();
  for (const KernelTally& kernel : tally.kernels) json["kernels"].push_back(KernelJson(kernel));
  json["intervals"] = OrderedJson::array();
  for (const LoadInterval& interval : result.intervals) {
    json["intervals"].push_back(IntervalJson(interval));
  }
  json["verification"] = {{"checked", step.verified.checked},
                          {"exact", step.verified.exact},
                          {"wrong", step.verified.wrong},
                          {"let_go", step.verified.skipped},
                          {"first_error", step.verified.first_error}};
  json["warnings"] = step.warnings;
  return json;
}

}  // namespace

OrderedJson ReportJson(const LoadReport& report) {
  OrderedJson json = {{"gemmload", report.version},
                      {"client",
                       {{"host", report.client.host},
                        {"cpu", report.client.cpu},
                        {"cores", report.client.cores},
                        {"usable_cores", report.client.usable_cores}}},
                      {"servers", OrderedJson::array()},
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
                      {"steps", OrderedJson::array()}};
  for (const ReportedServer& server : report.servers) {
    json["servers"].push_back(ServerJson(server));
  }
  for (const ReportStep& step : report.steps) json["steps"].push_back(StepJson(report, step));
  if (report.slo.has_value()) json["slo"] = SloJson(*report.slo);
  return json;
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
    absl::StrAppendFormat(&text, "\"%s\",%g,%.6f,%.3f,%.3f,%d,%d,%d,%.3f,%.0f",
                          absl::StrReplaceAll(step.name, {{"\"", "\"\""}}), step.target,
                          result.window_s, result.rate, result.offered, tally.calls(),
                          tally.failed(), result.unsent, result.client_cores,
                          tally.latency.MeanNs());
    for (const ReportedPercentile& p : kPercentiles)
      absl::StrAppend(&text, ",", tally.latency.ValueAt(p.fraction));
    absl::StrAppend(&text, ",", tally.latency.max_ns());
    for (const ReportedPercentile& p : kPercentiles)
      absl::StrAppend(&text, ",", tally.service.ValueAt(p.fraction));
    absl::StrAppend(&text, ",", tally.blocked.ValueAt(0.99), ",", tally.send_error.ValueAt(0.99));
    for (const Histogram& stage : tally.stages)
      absl::StrAppendFormat(&text, ",%.0f", stage.MeanNs());
    text += "\n";
  }
  return text;
}

absl::Status CheckReportFiles(const LoadFlags& flags, const Mix& mix) {
  std::vector<NamedFile> inputs = FilesOf(flags.security);
  inputs.push_back({"--mix", flags.mix_path});
  inputs.push_back({"--replay", flags.replay_path});
  for (const LoadProduct& product : mix) {
    inputs.push_back({"operand A", product.a_path});
    inputs.push_back({"operand B", product.b_path});
  }
  const std::vector<NamedFile> outputs = {
      {"--json", flags.json_path}, {"--csv", flags.csv_path}, {"--html", flags.html_path}};
  absl::Status status = CheckOutputs(outputs, inputs);
  for (const NamedFile& output : outputs) {
    if (status.ok() && !output.path.empty()) status = CheckWritable(output.path);
  }
  return status;
}

absl::Status WriteReportFiles(const LoadFlags& flags, const LoadReport& report,
                              const StopRequests& stop) {
  absl::Status status;
  if (!flags.json_path.empty()) {
    // Text from a mix or a server may not be UTF-8.
    const std::string json =
        ReportJson(report).dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
    status.Update(WriteTextFile(flags.json_path, json + "\n", &stop));
  }
  if (!flags.csv_path.empty()) {
    status.Update(WriteTextFile(flags.csv_path, ReportCsv(report), &stop));
  }
  if (!flags.html_path.empty()) {
    status.Update(WriteTextFile(flags.html_path, ReportHtml(report), &stop));
  }
  return status;
}

}  // namespace gemmd
