// SPDX-License-Identifier: Apache-2.0
//
// gemmctl incidents.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/terminal/option.h"
#include "client/terminal/text_table.h"
#include "gemmd/v1/incidents.pb.h"

namespace gemmd {
namespace {

constexpr char kIncidentsHelp[] =
    "Examples:\n"
    "  gemmctl incidents --address unix:/run/gemmd/gemmd.sock\n"
    "  gemmctl incidents --json | jq '.incidents[] | {id, device, kernel, chip_state}'\n\n"
    "Answers are checked where the daemon's --verify or the request says so. The server takes "
    "this\n"
    "over a unix socket only, from root, its own user and members of its --operators-group, or\n"
    "from a caller whose rules say `administer`.";

using Align = TextTable::Align;

std::string TimeText(const v1::Incident& incident) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%SZ", absl::FromUnixNanos(incident.time_unix_ns()),
                          absl::UTCTimeZone());
}

std::string ElementText(const v1::Incident& incident) {
  const std::string place = absl::StrCat(incident.row(), ",", incident.column());
  return incident.batch() == 0 ? place : absl::StrCat(incident.batch(), ":", place);
}

std::string IncidentTable(const v1::ListIncidentsResponse& incidents) {
  TextTable table({{"id", Align::kRight},
                   {"found"},
                   {"device"},
                   {"kernel"},
                   {"problem"},
                   {"element"},
                   {"got", Align::kRight},
                   {"want", Align::kRight},
                   {"wrong", Align::kRight}});
  for (const v1::Incident& incident : incidents.incidents()) {
    table.AddRow(
        {absl::StrCat(incident.id()), TimeText(incident), incident.device(), incident.kernel(),
         incident.problem(), ElementText(incident), absl::StrFormat("0x%x", incident.got_bits()),
         absl::StrFormat("0x%x", incident.want_bits()), absl::StrCat(incident.wrong_elements())});
  }
  return absl::StrCat(table.Print(), incidents.found(), " wrong answers since the start\n");
}

ExitCode RunIncidents(const GlobalFlags& global, const Console& console) {
  return PrintAnswer(
      global, console, [](Client& client) { return client.ListIncidents(); }, IncidentTable);
}

CommandRun AddIncidents(CLI::App& app) {
  SetFooter(app, kIncidentsHelp);
  return RunIncidents;
}

}  // namespace

constexpr Command kIncidentsCommand = {
    "incidents", "List wrong answers that the server found before giving them", AddIncidents};

}  // namespace gemmd
