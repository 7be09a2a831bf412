// SPDX-License-Identifier: Apache-2.0
//
// gemmctl restart-device.
#include <string>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"

namespace gemmd {
namespace {

constexpr char kRestartDeviceHelp[] =
    "Examples:\n"
    "  gemmctl restart-device cuda:0 --address unix:/run/gemmd/gemmd.sock\n\n"
    "The server takes this over a unix socket only, from root, its own user and members of its\n"
    "--operators-group; where it has rules, from whom they let administer.\n"
    "The product that runs on the GPU ends with ABORTED, those that wait with UNAVAILABLE. A GPU\n"
    "that rests after too many restarts is tried again at once. The worker of cpu or of a\n"
    "simulator ends after the product that it runs. Kernels that the device refuses because they\n"
    "ended its workers are used again.\n"
    "`gemmctl health --service cuda:0 --watch` tells when a GPU is ready.";

ExitCode RunRestart(const GlobalFlags& global, const std::string& device, const Console& console) {
  return PrintAnswer(
      global, console,
      [&](Client& client) -> absl::StatusOr<std::string> {
        const absl::Status status = client.RestartDevice(device);
        if (!status.ok()) return status;
        return device;
      },
      [](const std::string& name) { return absl::StrCat(name, " gets a new worker\n"); },
      [](const std::string& name) {
        return nlohmann::ordered_json({{"restarting", name}});
      });
}

CommandRun AddRestart(CLI::App& app) {
  return AddSubject(app, kRestartDeviceHelp, "device", "NAME",
                    "Name of the device, as `gemmctl devices` lists it", RunRestart);
}

}  // namespace

constexpr Command kRestartDeviceCommand = {
    "restart-device", "Replace the worker process of a device (over a unix socket)", AddRestart};

}  // namespace gemmd
