// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/timing_report.h"

#include <utility>

#include "client/terminal/text_table.h"

namespace gemmd {
namespace {

struct StageRow {
  const char* name;
  int64_t (*ns)(const CallTiming& call);
  bool has_rate;
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

}  // namespace

std::vector<StageTimes> StagesOf(const std::vector<CallTiming>& calls) {
  std::vector<StageTimes> stages;
  for (const StageRow& row : kStages) {
    StageTimes stage = {row.name, {}, row.has_rate};
    for (const CallTiming& call : calls) stage.ns.push_back(row.ns(call));
    stages.push_back(std::move(stage));
  }
  return stages;
}

std::string TimingTable(const std::vector<CallTiming>& calls, int64_t operations) {
  using Align = TextTable::Align;
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
  for (const StageTimes& stage : StagesOf(calls)) {
    const Spread spread = SpreadOf(stage.ns);
    std::vector<std::string> cells = {stage.name};
    if (!is_one) cells.push_back(FormatNanoseconds(spread.least));
    cells.push_back(FormatNanoseconds(spread.p50));
    if (!is_one) cells.push_back(FormatNanoseconds(spread.p99));
    if (stage.has_rate) cells.push_back(FormatOperationRate(operations, spread.p50));
    table.AddRow(std::move(cells));
  }
  return table.Print();
}

nlohmann::ordered_json TimingJson(const std::vector<CallTiming>& calls) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const StageTimes& stage : StagesOf(calls)) {
    const Spread spread = SpreadOf(stage.ns);
    json[stage.name] = {{"min_ns", spread.least}, {"p50_ns", spread.p50}, {"p99_ns", spread.p99}};
  }
  return json;
}

}  // namespace gemmd
