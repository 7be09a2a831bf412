// SPDX-License-Identifier: Apache-2.0
//
// gemmctl keep.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/message_json.h"
#include "client/gemmctl/tensor_session.h"
#include "client/gemmctl/tensor_table.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kKeepHelp[] =
    "Examples:\n"
    "  gemmctl keep weights/layer3 --pin\n"
    "  gemmctl keep weights/layer3 --unpin --lease 10m    It ends 10 min after its last use\n\n";

struct KeepFlags {
  std::string name;
  std::string lease;
  bool pin = false;
  bool unpin = false;
};

absl::StatusOr<KeepAliveOptions> OptionsFor(const KeepFlags& flags) {
  KeepAliveOptions options;
  if (flags.pin && flags.unpin) {
    return absl::InvalidArgumentError("--pin: got --unpin too, want one of them");
  }
  if (flags.pin || flags.unpin) options.pinned = flags.pin;
  if (flags.lease.empty()) return options;
  const auto lease = ParseTimeout(flags.lease, "--lease");
  if (!lease.ok()) return lease.status();
  options.lease = *lease;
  return options;
}

ExitCode RunKeep(const GlobalFlags& global, const KeepFlags& flags, const Console& console) {
  const auto options = OptionsFor(flags);
  if (!options.ok()) return FailLocally(console, options.status());
  auto client = ConnectSession(global, false, console);
  if (!client.ok()) return FailSession(console, client.status());
  const auto info = client->KeepAlive(TensorNamed(flags.name), *options);
  if (!info.ok()) return FailCall(console, info.status());
  console.Print(global.json ? JsonLine(TensorJson(*info)) : TensorText(*info));
  return ExitCode::kOk;
}

CommandRun AddKeep(CLI::App& app) {
  auto flags = std::make_unique<KeepFlags>();
  SetFooter(app, absl::StrCat(kKeepHelp, kSessionHelp));
  AddOption(app, "NAME", flags->name, "Name or handle of the tensor").Require();
  AddFlag(app, "--pin", flags->pin, "Keep it until it is removed, also beyond its session");
  AddFlag(app, "--unpin", flags->unpin, "Let it end with its lease or its session");
  AddOption(app, "--lease", flags->lease,
            "Time from its last use to its end: seconds, or 500ms, 2m (default: as it is)")
      .TypeName("TIME");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunKeep(global, *flags, console);
  };
}

}  // namespace

constexpr Command kKeepCommand = {"keep", "Renew the lease of a tensor, pin it or unpin it",
                                  AddKeep};

}  // namespace gemmd
