// SPDX-License-Identifier: Apache-2.0
//
// gemmctl health.
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/message_json.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kHealthHelp[] =
    "Examples:\n"
    "  gemmctl health && echo up\n"
    "  gemmctl health --service gemmd.v1.Gemm --watch\n\n"
    "Exits with 0 only for SERVING; with --watch, if the last status was that.";

struct HealthFlags {
  std::string service;
  bool watch = false;
};

void PrintStatus(const GlobalFlags& global, ServingStatus status, const Console& console) {
  const std::string name(ServingStatusName(status));
  console.Print(global.json ? JsonLine({{"status", name}}) : absl::StrCat(name, "\n"));
  std::fflush(console.out);
}

ExitCode Judge(ServingStatus status) {
  return status == ServingStatus::kServing ? ExitCode::kOk : ExitCode::kRefused;
}

ExitCode Watch(Client& client, const GlobalFlags& global, const HealthFlags& flags,
               const Console& console) {
  ServingStatus last = ServingStatus::kUnknown;
  bool has_status = false;
  const absl::Status status = client.WatchHealth(flags.service, [&](ServingStatus changed) {
    last = changed;
    has_status = true;
    PrintStatus(global, changed, console);
    return true;
  });
  // The timeout is how a watch ends.
  if (has_status && absl::IsDeadlineExceeded(status)) return Judge(last);
  return FailCall(console, status);
}

ExitCode RunHealth(const GlobalFlags& global, const HealthFlags& flags, const Console& console) {
  auto client = Connect(global, flags.watch ? absl::Hours(365 * 24) : absl::Seconds(60));
  if (!client.ok()) return FailLocally(console, client.status());
  if (flags.watch) return Watch(*client, global, flags, console);
  const auto status = client->CheckHealth(flags.service);
  if (!status.ok()) return FailCall(console, status.status());
  PrintStatus(global, *status, console);
  return Judge(*status);
}

CommandRun AddHealth(CLI::App& app) {
  auto flags = std::make_unique<HealthFlags>();
  SetFooter(app, kHealthHelp);
  AddOption(app, "--service", flags->service,
            "Name of one service (default: the server as a whole)");
  AddFlag(app, "--watch", flags->watch, "Print each change until the timeout (default: a year)");
  return [flags = std::move(flags)](const GlobalFlags& global, const Console& console) {
    return RunHealth(global, *flags, console);
  };
}

}  // namespace

constexpr Command kHealthCommand = {
    "health", "Ask whether the server takes requests (grpc.health.v1)", AddHealth};

}  // namespace gemmd
