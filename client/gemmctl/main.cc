// SPDX-License-Identifier: Apache-2.0
//
// gemmctl: gemmd from the command line.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "client/gemmctl/command_line.h"

namespace {

// The folder of session tokens. Users who have not logged in, and containers, have no runtime
// folder.
std::string SessionFolder() {
  const std::string of_login = gemmd::Variable("XDG_RUNTIME_DIR");
  if (!of_login.empty()) return of_login + "/gemmd";
  return "/tmp/gemmd-" + std::to_string(geteuid());
}

}  // namespace

int main(int argc, char** argv) {
  const gemmd::Environment environment = {
      .address = gemmd::Variable("GEMMD_ADDRESS", "127.0.0.1:8470"),
      .session = gemmd::Variable("GEMMD_SESSION"),
      .session_folder = SessionFolder(),
      .security = gemmd::SecurityFlagsOfEnvironment()};
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const gemmd::Console console = {stdin, stdout, stderr, "gemmctl"};
  const gemmd::ExitCode code = gemmd::RunCommandLine(arguments, environment, console);
  return static_cast<int>(gemmd::EndOutput(code));
}
