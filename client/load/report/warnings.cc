// SPDX-License-Identifier: Apache-2.0
//
// What a report says about its own figures.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/load/report/report.h"
#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

constexpr int64_t kLateNs = 1'000'000;  // What a sender of an open loop should stay under.

constexpr char kSharedMachine[] =
    "client and server share this machine: each takes time from the other";

// Calls that the server had not answered at the end of the window, beyond those that its latency
// explains: a server that keeps up holds as many as come within its latency.
bool FallsBehind(const StepResult& result) {
  const Tally& tally = result.tally;
  const double offered = static_cast<double>(tally.calls() + result.unsent);
  const double behind =
      offered - static_cast<double>(tally.failed()) - result.rate * result.window_s;
  // By Little's law, rate x mean latency calls are in flight; a server that falls further and
  // further behind shows half its backlog. A run no longer than the shortest latency leaves all
  // calls open.
  const double in_mean = 1.5 * result.rate * tally.latency.MeanNs() * 1e-9;
  const double in_least = result.offered * static_cast<double>(tally.latency.least_ns()) * 1e-9;
  return behind > 0.05 * offered && behind > in_mean && behind > in_least + 1;
}

void WarnOfChecks(const ReportStep& step, std::vector<std::string>& warnings) {
  const VerifierCounts& verified = step.verified;
  if (verified.wrong > 0) {
    warnings.push_back(absl::StrCat("wrong answers: ", verified.wrong, " of ", verified.checked,
                                    " checked; ", verified.first_error));
  }
  if (verified.is_asked && verified.checked == 0 && step.result.tally.ok() > 0) {
    warnings.push_back("no answer was checked");
  } else if (verified.let_go > verified.checked) {
    warnings.push_back(absl::StrCat(
        FormatCount(verified.let_go), " answers came faster than they could be checked, ",
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
    warnings.push_back("interrupted: the window is shorter than asked for");
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
    warnings.push_back("a longer --duration makes windows longer, and those contradict less");
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
        is_shared = true;  // It is said once, since it is no step's own.
      } else {
        warnings.push_back(steps.size() > 1 ? absl::StrCat(step.name, ": ", warning) : warning);
      }
    }
  }
  if (is_shared) warnings.push_back(kSharedMachine);
  return warnings;
}

}  // namespace gemmd
