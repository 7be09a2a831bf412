// SPDX-License-Identifier: Apache-2.0
//
// gemmctl: gemmd from the command line.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/gemmctl/command_line.h"

namespace {

// The value of an environment variable; an empty variable counts as unset.
std::string Variable(const char* name, const char* otherwise = "") {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): there is only one thread yet.
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

// The folder of session tokens. Users who have not logged in, and containers, have no runtime
// folder.
std::string SessionFolder() {
  const std::string of_login = Variable("XDG_RUNTIME_DIR");
  if (!of_login.empty()) return of_login + "/gemmd";
  return "/tmp/gemmd-" + std::to_string(geteuid());
}

}  // namespace

int main(int argc, char** argv) {
  const gemmd::Environment environment = {.address = Variable("GEMMD_ADDRESS", "127.0.0.1:8470"),
                                          .session = Variable("GEMMD_SESSION"),
                                          .session_folder = SessionFolder(),
                                          .security = gemmd::SecurityFlagsOfEnvironment(
                                              [](const char* name) { return Variable(name); })};
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const gemmd::Console console = {stdin, stdout, stderr, "gemmctl"};
  const gemmd::ExitCode code = gemmd::RunCommandLine(arguments, environment, console);
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  // The result could not be written, for example because the disk is full.
  if (!is_written && code == gemmd::ExitCode::kOk) return static_cast<int>(gemmd::ExitCode::kUsage);
  return static_cast<int>(code);
}
