// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/matrix/reference.h"
#include "client/terminal/text_table.h"
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
    case End::kEveryRate: return absl::StrCat("every rate holds that was tried, up to ", rate);
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
    return DefaultAccumulationType(product.type) == v1::ELEMENT_TYPE_S32;
  });
  const bool has_sparse = std::any_of(mix.begin(), mix.end(),
                                      [](const LoadProduct& product) { return product.is_sparse; });
  return absl::StrCat(has_integers ? "OP/s" : "FLOP/s", has_sparse ? " (dense-equivalent)" : "");
}

}  // namespace gemmd
