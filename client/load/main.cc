// SPDX-License-Identifier: Apache-2.0
//
// gemmload: a load generator for gemmd servers.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "client/load/load_command_line.h"

namespace {

// Global because a signal handler can access nothing else.
gemmd::StopRequests stop_requests = 0;
static_assert(gemmd::StopRequests::is_always_lock_free);

void RequestStop(int /*signal*/) { stop_requests.fetch_add(1); }

}  // namespace

int main(int argc, char** argv) {
  // Debian's Abseil enables deadlock detection, which takes a process-wide lock for each mutex.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  struct sigaction action = {};
  action.sa_handler = RequestStop;
  action.sa_flags = SA_RESTART;  // Signals do not interrupt reads and writes.
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // Reports are written even when the reader of the live view or of the text has gone.
  signal(SIGPIPE, SIG_IGN);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const gemmd::Console console = {stdin, stdout, stderr, "gemmload"};
  const gemmd::ExitCode code = gemmd::RunGemmload(
      arguments, gemmd::Variable("GEMMD_ADDRESS", "127.0.0.1:8470"), console,
      isatty(STDERR_FILENO) == 1, stop_requests, gemmd::SecurityFlagsOfEnvironment());
  return static_cast<int>(gemmd::EndOutput(code));
}
