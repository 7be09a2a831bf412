// SPDX-License-Identifier: Apache-2.0
//
// gemmctl sessions.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/terminal/option.h"
#include "client/terminal/text_table.h"
#include "gemmd/v1/admin.pb.h"

namespace gemmd {
namespace {

constexpr char kSessionsHelp[] =
    "Examples:\n"
    "  gemmctl sessions --address unix:/run/gemmd/gemmd.sock\n"
    "  gemmctl sessions --json | jq '.sessions[] | select(.streams == 0) | .id'\n\n"
    "The sessions with the most bytes come first. A session is `connected` while its owner holds\n"
    "it open, and `in use` while only calls use it. One that `lingers` loses its tensors after\n"
    "the time shown, except those of callers whom the rules name and pinned ones, which stay for\n"
    "the server's --pinned-linger. `idle`: only such tensors are left.\n"
    "`gemmctl drop-session ID` ends one. The server takes this over a unix socket only, from "
    "root,\n"
    "its own user and members of its --operators-group, or from a caller whose rules say\n"
    "`administer`.";

using Align = TextTable::Align;

std::string StateText(const v1::Session& session) {
  if (session.streams() > 0) return "connected";
  if (session.in_use()) return "in use";
  if (session.lingers_ns() == 0) return "idle";
  return absl::StrCat("lingers ", FormatNanoseconds(session.lingers_ns()));
}

std::string LargestText(const v1::Session& session) {
  std::vector<std::string> names;
  for (const v1::SessionTensor& tensor : session.largest_tensors()) {
    names.push_back(tensor.name().empty() ? "-" : tensor.name());
  }
  return absl::StrJoin(names, " ");
}

std::string SessionTable(const v1::ListSessionsResponse& sessions) {
  TextTable table({{"id"},
                   {"caller"},
                   {"age", Align::kRight},
                   {"state"},
                   {"tensors", Align::kRight},
                   {"pinned", Align::kRight},
                   {"uploads", Align::kRight},
                   {"bytes", Align::kRight},
                   {"largest"}});
  for (const v1::Session& session : sessions.sessions()) {
    table.AddRow({session.id(), session.caller(), FormatNanoseconds(session.age_ns()),
                  StateText(session), FormatCount(session.tensors()),
                  FormatCount(session.pinned_tensors()), FormatCount(session.uploads()),
                  FormatBytes(session.host_bytes()), LargestText(session)});
  }
  return absl::StrCat(
      table.Print(), "\n", sessions.sessions_size(),
      sessions.sessions_size() == 1 ? " session" : " sessions",
      sessions.left_out() == 0 ? "" : absl::StrCat(", ", sessions.left_out(), " more are left out"),
      "\n");
}

ExitCode RunSessions(const GlobalFlags& global, int64_t limit, const Console& console) {
  return PrintAnswer(
      global, console, [limit](Client& client) { return client.ListSessions(limit); },
      SessionTable);
}

CommandRun AddSessions(CLI::App& app) {
  auto limit = std::make_unique<int64_t>(100);
  SetFooter(app, kSessionsHelp);
  AddOption(app, "--limit", *limit, "Sessions that are listed at most", 1, 1000).ShowDefault();
  return [limit = std::move(limit)](const GlobalFlags& global, const Console& console) {
    return RunSessions(global, *limit, console);
  };
}

}  // namespace

constexpr Command kSessionsCommand = {
    "sessions", "List the sessions of all callers, which own tensors on the server", AddSessions};

}  // namespace gemmd
