// SPDX-License-Identifier: Apache-2.0
//
// gemmctl: gemmd from the command line.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/gemmctl/command_line.h"

int main(int argc, char** argv) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): there is only one thread yet.
  const char* const address = std::getenv("GEMMD_ADDRESS");
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const gemmd::Console console = {stdin, stdout, stderr, "gemmctl"};
  const gemmd::ExitCode code = gemmd::RunCommandLine(
      arguments, address != nullptr && *address != '\0' ? address : "127.0.0.1:8470", console);
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  // A full disk, for example, kept the result from its file.
  if (!is_written && code == gemmd::ExitCode::kOk) return static_cast<int>(gemmd::ExitCode::kUsage);
  return static_cast<int>(code);
}
