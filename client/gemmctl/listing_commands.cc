// SPDX-License-Identifier: Apache-2.0
//
// gemmctl kernels, devices and info.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/kernel_table.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/server_tables.h"

namespace gemmd {

namespace {

// The kernels that the flags ask for.
absl::StatusOr<v1::ListKernelsResponse> AskForKernels(Client& client, const KernelsFlags& flags) {
  auto kernels = client.ListKernels(flags.pattern);
  if (!kernels.ok()) return kernels.status();
  if (flags.device.empty()) return SelectKernels(*kernels, nullptr, flags.all);
  const auto devices = client.ListDevices();
  if (!devices.ok()) return devices.status();
  std::vector<std::string> names;
  for (const v1::Device& device : devices->devices()) {
    if (device.name() == flags.device) return SelectKernels(*kernels, &device, flags.all);
    names.push_back(device.name());
  }
  return absl::NotFoundError(absl::StrCat("--device: got ", flags.device, ", want a device of the ",
                                          "server: ", absl::StrJoin(names, ", ")));
}

}  // namespace

ExitCode RunKernels(const GlobalFlags& global, const KernelsFlags& flags, const Console& console) {
  auto client = Connect(global);
  if (!client.ok()) return FailLocally(console, client.status());
  const auto kernels = AskForKernels(*client, flags);
  if (!kernels.ok()) return FailCall(console, kernels.status());
  if (global.json) {
    console.Print(JsonLine(MessageJson(*kernels)));
  } else {
    console.Print(KernelTable(*kernels, flags.all));
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
