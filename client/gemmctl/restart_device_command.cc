// SPDX-License-Identifier: Apache-2.0
//
// gemmctl restart-device.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/message_json.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kRestartDeviceHelp[] =
    "Examples:\n"
    "  gemmctl restart-device cuda:0 --address unix:/run/gemmd/gemmd.sock\n\n"
    "The server takes this over a unix socket only. The product that runs on the GPU ends with\n"
    "ABORTED, those that wait with UNAVAILABLE. A GPU that rests after too many restarts is tried\n"
    "again at once. The worker of cpu or of a simulator ends after the product that it runs.\n"
    "Kernels that the device refuses because they ended its workers are used again.\n"
    "`gemmctl health --service cuda:0 --watch` tells when a GPU is ready.";

struct RestartFlags {
  std::string device;
};

ExitCode RunRestart(const GlobalFlags& global, const RestartFlags& flags, const Console& console) {
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  const absl::Status status = client->RestartDevice(flags.device);
  if (!status.ok()) return FailCall(console, status);
  console.Print(global.json ? JsonLine({{"restarting", flags.device}})
                            : absl::StrCat(flags.device, " gets a new worker\n"));
  return ExitCode::kOk;
}

CommandRun AddRestart(CLI::App& app) {
  auto flags = std::make_unique<RestartFlags>();
  SetFooter(app, kRestartDeviceHelp);
  AddOption(app, "device", flags->device, "Name of the device, as `gemmctl devices` lists it")
      .TypeName("NAME")
      .Require();
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunRestart(global, *flags, console);
  };
}

}  // namespace

constexpr Command kRestartDeviceCommand = {
    "restart-device", "Replace the worker process of a device (over a unix socket)", AddRestart};

}  // namespace gemmd
