// SPDX-License-Identifier: Apache-2.0
//
// gemmctl rm.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/tensor_session.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kRmHelp[] =
    "Examples:\n"
    "  gemmctl rm weights/layer3\n"
    "  gemmctl rm 0f3a5c6e7b8d9a0b1c2d3e4f5a6b7c8d     A handle, as `gemmctl ls` shows it\n\n";

ExitCode RunRm(const GlobalFlags& global, const std::string& name, const Console& console) {
  auto client = ConnectSession(global, false, console);
  if (!client.ok()) return FailSession(console, client.status());
  const absl::Status status = client->Delete(TensorNamed(name));
  return status.ok() ? ExitCode::kOk : FailCall(console, status);
}

CommandRun AddRm(CLI::App& app) {
  auto name = std::make_unique<std::string>();
  SetFooter(app, absl::StrCat(kRmHelp, kSessionHelp));
  AddOption(app, "NAME", *name, "Name or handle of the tensor").Require();
  return [name = std::move(name)](const GlobalFlags& global, const Console& console) {
    return RunRm(global, *name, console);
  };
}

}  // namespace

constexpr Command kRmCommand = {"rm", "Delete a tensor of the server", AddRm};

}  // namespace gemmd
