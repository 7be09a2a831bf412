// SPDX-License-Identifier: Apache-2.0
//
// gemmload: a load generator for gemmd servers.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "client/load/load_command_line.h"

namespace {

// Global because a signal handler can access nothing else.
gemmd::StopRequests stop_requests = 0;
static_assert(gemmd::StopRequests::is_always_lock_free);

void RequestStop(int /*signal*/) { stop_requests.fetch_add(1); }

// The value of an environment variable; empty if unset.
std::string Variable(const char* name) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): there is only one thread yet.
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

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
  const std::string address = Variable("GEMMD_ADDRESS");
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const gemmd::Console console = {stdin, stdout, stderr, "gemmload"};
  const gemmd::ExitCode code = gemmd::RunGemmload(
      arguments, address.empty() ? "127.0.0.1:8470" : address, console, isatty(STDERR_FILENO) == 1,
      stop_requests, gemmd::SecurityFlagsOfEnvironment(Variable));
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!is_written && code == gemmd::ExitCode::kOk) return static_cast<int>(gemmd::ExitCode::kUsage);
  return static_cast<int>(code);
}
