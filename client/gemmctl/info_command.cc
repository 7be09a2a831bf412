// SPDX-License-Identifier: Apache-2.0
//
// gemmctl info.

#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/server_tables.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kInfoHelp[] =
    "Examples:\n"
    "  gemmctl info\n"
    "  gemmctl --address unix:/run/gemmd.sock info --json";

ExitCode RunInfo(const GlobalFlags& global, const Console& console) {
  return PrintAnswer(
      global, console, [](Client& client) { return client.GetServerInfo(); }, ServerInfoText);
}

CommandRun AddInfo(CLI::App& app) {
  SetFooter(app, kInfoHelp);
  return RunInfo;
}

}  // namespace

constexpr Command kInfoCommand = {"info", "Show the server's version, limits and features",
                                  AddInfo};

}  // namespace gemmd
