// SPDX-License-Identifier: Apache-2.0
//
// gemmctl kernels, devices and info.
#include <string>

#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/kernel_table.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/server_tables.h"

namespace gemmd {

ExitCode RunKernels(const GlobalFlags& global, const KernelsFlags& flags, const Console& console) {
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  const auto kernels = client->ListKernels(flags.filter);
  if (!kernels.ok()) return FailCall(console, kernels.status());
  if (global.json) {
    console.Print(JsonLine(MessageJson(*kernels)));
  } else {
    console.Print(flags.markdown ? KernelTableMarkdown(*kernels) : KernelTable(*kernels));
  }
  return ExitCode::kOk;
}

ExitCode RunDevices(const GlobalFlags& global, const Console& console) {
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  const auto devices = client->ListDevices();
  if (!devices.ok()) return FailCall(console, devices.status());
  console.Print(global.json ? JsonLine(MessageJson(*devices)) : DeviceTable(*devices));
  return ExitCode::kOk;
}

ExitCode RunInfo(const GlobalFlags& global, const Console& console) {
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  const auto info = client->GetServerInfo();
  if (!info.ok()) return FailCall(console, info.status());
  console.Print(global.json ? JsonLine(MessageJson(*info)) : ServerInfoText(*info));
  return ExitCode::kOk;
}

}  // namespace gemmd
