// SPDX-License-Identifier: Apache-2.0
//
// gemmctl drop-session.
#include <string>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/terminal/text_table.h"
#include "gemmd/v1/admin.pb.h"

namespace gemmd {
namespace {

constexpr char kDropSessionHelp[] =
    "Examples:\n"
    "  gemmctl drop-session 0123456789abcdef --address unix:/run/gemmd/gemmd.sock\n\n"
    "The server takes this over a unix socket only, from root, its own user and members of its\n"
    "--operators-group; where it has rules, from whom they let administer. All tensors of the\n"
    "session are deleted, pinned ones too, and its uploads end with NOT_FOUND. Products that have\n"
    "begun keep the tensors that they read, and end as they would have; one whose result is to be\n"
    "a new tensor of the session ends with NOT_FOUND. The owner may open another session at once.";

std::string DroppedText(const std::string& id, const v1::DropSessionResponse& dropped) {
  return absl::StrCat(id, " is dropped: ", FormatCount(dropped.tensors()),
                      dropped.tensors() == 1 ? " tensor, " : " tensors, ",
                      FormatBytes(dropped.freed_bytes()), " freed",
                      dropped.held_bytes() == 0
                          ? ""
                          : absl::StrCat(", ", FormatBytes(dropped.held_bytes()),
                                         " more once the calls that hold them end"),
                      "\n");
}

ExitCode RunDropSession(const GlobalFlags& global, const std::string& id, const Console& console) {
  return PrintAnswer(
      global, console, [&](Client& client) { return client.DropSession(id); },
      [&](const v1::DropSessionResponse& dropped) { return DroppedText(id, dropped); });
}

CommandRun AddDropSession(CLI::App& app) {
  return AddSubject(app, kDropSessionHelp, "id", "ID",
                    "The session's id, as `gemmctl sessions` lists it", RunDropSession);
}

}  // namespace

constexpr Command kDropSessionCommand = {
    "drop-session", "End a session and delete its tensors (over a unix socket)", AddDropSession};

}  // namespace gemmd
