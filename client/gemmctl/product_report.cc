// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/product_report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/terminal/text.h"

namespace gemmd {

int64_t Percentile(std::vector<int64_t> values, double fraction) {
  if (values.empty()) return 0;
  const double rank = std::ceil(fraction * static_cast<double>(values.size()));
  const size_t index =
      static_cast<size_t>(std::clamp(rank - 1, 0.0, static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index),
                   values.end());
  return values[index];
}

Spread SpreadOf(std::vector<int64_t> values) {
  return {Percentile(values, 0), Percentile(values, 0.5), Percentile(std::move(values), 0.99)};
}

namespace {

using Align = TextTable::Align;

// The stages in the order in which they happen; then total, overhead and round trip.
struct StageRow {
  const char* name;
  int64_t (*ns)(const CallTiming& call);
  bool has_rate;  // Whether operations per second are meaningful.
};

constexpr StageRow kStages[] = {
    {"receive", [](const CallTiming& call) { return call.server.receive_ns(); }, false},
    {"queue", [](const CallTiming& call) { return call.server.queue_ns(); }, false},
    {"copy_in", [](const CallTiming& call) { return call.server.copy_in_ns(); }, false},
    {"compute", [](const CallTiming& call) { return call.server.compute_ns(); }, true},
    {"copy_out", [](const CallTiming& call) { return call.server.copy_out_ns(); }, false},
    {"send_prepare", [](const CallTiming& call) { return call.server.send_prepare_ns(); }, false},
    {"total", [](const CallTiming& call) { return call.server.total_ns(); }, true},
    {"overhead",
     [](const CallTiming& call) { return call.server.total_ns() - call.server.compute_ns(); },
     false},
    {"round_trip", [](const CallTiming& call) { return call.round_trip_ns; }, true},
};

Spread SpreadOf(const StageRow& stage, const std::vector<CallTiming>& calls) {
  std::vector<int64_t> ns;
  for (const CallTiming& call : calls) ns.push_back(stage.ns(call));
  return gemmd::SpreadOf(std::move(ns));
}

}  // namespace

std::string TimingTable(const std::vector<CallTiming>& calls, int64_t operations) {
  const bool is_one = calls.size() == 1;
  std::vector<TextTable::Column> columns = {{"stage"}};
  if (is_one) {
    columns.push_back({"time", Align::kRight});
  } else {
    columns.insert(columns.end(),
                   {{"min", Align::kRight}, {"p50", Align::kRight}, {"p99", Align::kRight}});
  }
  columns.push_back({"rate", Align::kRight});
  TextTable table(std::move(columns));
  for (const StageRow& stage : kStages) {
    const Spread spread = SpreadOf(stage, calls);
    std::vector<std::string> cells = {stage.name};
    if (!is_one) cells.push_back(FormatNanoseconds(spread.min));
    cells.push_back(FormatNanoseconds(spread.p50));
    if (!is_one) cells.push_back(FormatNanoseconds(spread.p99));
    if (stage.has_rate) cells.push_back(FormatOperationRate(operations, spread.p50));
    table.AddRow(std::move(cells));
  }
  return table.Print();
}

nlohmann::ordered_json TimingJson(const std::vector<CallTiming>& calls) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const StageRow& stage : kStages) {
    const Spread spread = SpreadOf(stage, calls);
    json[stage.name] = {{"min_ns", spread.min}, {"p50_ns", spread.p50}, {"p99_ns", spread.p99}};
  }
  return json;
}

namespace {

constexpr std::pair<absl::string_view, v1::VerifyMode> kModes[] = {
    {"none", v1::VERIFY_MODE_NONE},
    {"sampled", v1::VERIFY_MODE_SAMPLED},
    {"checksum", v1::VERIFY_MODE_CHECKSUM},
    {"duplicate", v1::VERIFY_MODE_DUPLICATE}};

absl::string_view NameOfMode(v1::VerifyMode mode) {
  for (const auto& [name, value] : kModes) {
    if (value == mode) return name;
  }
  return "unknown";
}

}  // namespace

absl::StatusOr<ServerCheck> ParseServerCheck(absl::string_view text) {
  if (text.empty()) return ServerCheck();
  for (const auto& [name, mode] : kModes) {
    if (text == name) return ServerCheck{.mode = mode};
  }
  absl::string_view rate_text = text;
  ServerCheck check = {.mode = v1::VERIFY_MODE_SAMPLED};
  if (absl::ConsumePrefix(&rate_text, "sampled:") && absl::SimpleAtod(rate_text, &check.rate) &&
      check.rate > 0 && check.rate <= 1) {
    return check;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("got ", text,
                   ", want none, sampled, sampled:RATE with a rate above 0 and at most 1, checksum "
                   "or duplicate"));
}

CommandOption AddServerCheck(CLI::App& app, std::string& text) {
  return AddOption(app, "--server-verify", text,
                   "Have the server check D before it answers: sampled[:RATE], recomputing random "
                   "elements; checksum, by sums of all rows; duplicate, computing D twice; or none "
                   "(default: the server's --verify). A wrong D is not sent: exit code 4")
      .TypeName("MODE")
      .Check([](const std::string& value) {
        const auto check = ParseServerCheck(value);
        return check.ok() ? std::string() : std::string(check.status().message());
      });
}

std::string ServerCheckText(const v1::Verification& check, int64_t total_ns) {
  const absl::string_view mode = NameOfMode(check.mode());
  if (check.outcome() != v1::VERIFY_OUTCOME_PASSED) {
    return absl::StrCat("\nchecked   not by the server (", mode, "): ", check.reason(), "\n");
  }
  std::string text = absl::StrFormat("\nchecked   by the server, %s: %s elements are right", mode,
                                     FormatCount(check.elements_checked()));
  if (!check.kernel().empty()) {
    absl::StrAppend(&text, ", again by ", check.kernel(), " on ", check.device());
  }
  absl::StrAppendFormat(
      &text, "; a wrong one%s is missed with probability %.6g\n",
      check.least_error() > 0 ? absl::StrFormat(" (by more than %.3g)", check.least_error()) : "",
      check.miss_probability());
  absl::StrAppendFormat(&text, "          cost %.4g of the product's operations, %s of %s",
                        check.cost(), FormatNanoseconds(check.verify_ns()),
                        FormatNanoseconds(total_ns));
  if (check.wrong_answers() > 0) {
    absl::StrAppend(&text, "; ", check.wrong_answers(), " wrong answers before it");
  }
  return text + "\n";
}

}  // namespace gemmd
