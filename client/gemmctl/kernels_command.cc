// SPDX-License-Identifier: Apache-2.0
//
// gemmctl kernels.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/kernel_table.h"
#include "client/terminal/option.h"
#include "gemmd/v1/registry.pb.h"

namespace gemmd {
namespace {

constexpr char kKernelsHelp[] =
    "Lists the kernels that some device of the server runs; kernels of wgmma that differ in N "
    "alone share a line.\n\n"
    "Examples:\n"
    "  gemmctl kernels\n"
    "  gemmctl kernels --pattern '*bf16*' --device sim:sm_90\n"
    "  gemmctl kernels --all --json | jq -r '.kernels[].name'";

struct KernelsFlags {
  std::string pattern;
  std::string device;
  bool all = false;  // Also kernels that no device runs, and each width of wgmma.
};

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

ExitCode RunKernels(const GlobalFlags& global, const KernelsFlags& flags, const Console& console) {
  return PrintAnswer(
      global, console, [&](Client& client) { return AskForKernels(client, flags); },
      [&](const v1::ListKernelsResponse& kernels) { return KernelTable(kernels, flags.all); });
}

CommandRun AddKernels(CLI::App& app) {
  auto flags = std::make_unique<KernelsFlags>();
  SetFooter(app, kKernelsHelp);
  AddOption(app, "--pattern", flags->pattern,
            "List only kernels whose names match; * is any run of characters")
      .TypeName("PATTERN");
  AddOption(app, "--device", flags->device, "List only kernels that this device runs")
      .TypeName("NAME");
  AddFlag(app, "--all", flags->all,
          "List each kernel on a line of its own, and those too that no device runs; with "
          "--device, every kernel for its kind of device");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunKernels(global, *flags, console);
  };
}

}  // namespace

constexpr Command kKernelsCommand = {"kernels", "List the server's kernels", AddKernels};

}  // namespace gemmd
