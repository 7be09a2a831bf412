// SPDX-License-Identifier: Apache-2.0
//
// gemmctl doctor.
#include "client/gemmctl/commands.h"
#include "client/gemmctl/connect.h"
#include "client/gemmctl/doctor_checks.h"
#include "client/gemmctl/message_json.h"
#include "client/terminal/option.h"

namespace gemmd {
namespace {

constexpr char kDoctorHelp[] =
    "Examples:\n"
    "  gemmctl doctor\n"
    "  gemmctl doctor --address tls:gemmd.example:8470 --timeout 10\n"
    "  gemmctl doctor --json | jq '.checks[] | select(.state != \"ok\")'\n\n"
    "Looks at the transport (TLS and the end of its certificate), versions, clocks, limits,\n"
    "health, latency, requests in flight, memory, tensors, quarantined kernels and incidents, and\n"
    "gives each device a product whose bits are known here. --timeout is for all of it (default\n"
    "30). Exits with 0 where nothing fails, warnings or not, and with 1 where something does,\n"
    "also where the server does not answer.";

ExitCode RunDoctor(const GlobalFlags& global, const Console& console) {
  absl::Duration limit = absl::Seconds(30);
  if (!global.timeout.empty()) {
    const auto timeout = ParseTimeout(global.timeout);
    if (!timeout.ok()) return FailLocally(console, timeout.status());
    limit = *timeout;
  }
  const auto checks = Examine(global, absl::Now() + limit);
  if (!checks.ok()) return FailLocally(console, checks.status());
  console.Print(global.json ? JsonLine(DoctorJson(*checks)) : DoctorText(*checks));
  return HasFailure(*checks) ? ExitCode::kRefused : ExitCode::kOk;
}

CommandRun AddDoctor(CLI::App& app) {
  SetFooter(app, kDoctorHelp);
  return RunDoctor;
}

}  // namespace

constexpr Command kDoctorCommand = {
    "doctor", "Check a deployed server from end to end and say what to do", AddDoctor};

}  // namespace gemmd
