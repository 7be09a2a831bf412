// SPDX-License-Identifier: Apache-2.0
//
// gemmctl devices.

#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/server_tables.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kDevicesHelp[] =
    "Examples:\n"
    "  gemmctl devices\n"
    "  gemmctl devices --json | jq '.devices[].name'";

ExitCode RunDevices(const GlobalFlags& global, const Console& console) {
  return PrintAnswer(
      global, console, [](Client& client) { return client.ListDevices(); }, DeviceTable);
}

CommandRun AddDevices(CLI::App& app) {
  SetFooter(app, kDevicesHelp);
  return RunDevices;
}

}  // namespace

constexpr Command kDevicesCommand = {
    "devices", "List the server's devices, their queues and measured rates", AddDevices};

}  // namespace gemmd
