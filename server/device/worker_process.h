// SPDX-License-Identifier: Apache-2.0
//
// A worker as a process: started, ended and waited for by the front, and started again.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/system/files.h"

namespace gemmd {

// Half a millisecond; less on a machine of few processors, and nothing below four.
int64_t DefaultSpinNs();

struct WorkerCommand {
  std::string binary;
  int ordinal = 0;
  int64_t memory_limit_bytes = 0;  // As WorkerOptions.
  int64_t tensor_limit_bytes = 0;  // As WorkerOptions.
  // Between jobs, the front's thread and the worker look for the next record for so long before
  // they sleep: waking them takes longer than a small job.
  int64_t spin_ns = DefaultSpinNs();
  // Whether it gives up its rights and gets WorkerEnvironment() in place of all of the front's.
  bool is_confined = true;
};

// The variables that a confined worker gets: those of the GPU's driver and its libraries, the
// loader's folders, and the tests' own.
std::vector<std::string> WorkerEnvironment(char** environment);

class WorkerProcess {
 public:
  // The process sees the socket and the staging area and no other file of the front but standard
  // input, output and error. The kernel ends it with the calling thread.
  // Errors: FailedPrecondition where there is no such binary; Unavailable.
  static absl::StatusOr<WorkerProcess> Start(const WorkerCommand& command, int staging);

  WorkerProcess() = default;
  WorkerProcess(WorkerProcess&& other) noexcept { *this = std::move(other); }
  WorkerProcess& operator=(WorkerProcess&& other) noexcept;

  int socket() const { return socket_.get(); }
  pid_t pid() const { return pid_; }

  // Asks it to end. Nothing can be sent or received any more.
  void CloseSocket() { socket_ = FileDescriptor(); }
  void Kill();

  // How it ended, "exit code 1" or "signal 9"; nothing while it runs. Does not wait.
  std::optional<std::string> TryReap();

 private:
  FileDescriptor socket_;
  pid_t pid_ = 0;  // 0: there is none, or it was reaped.
};

// Decides when to restart a worker that ended. After too many restarts in a short time it rests.
class RestartPolicy {
 public:
  struct Limits {
    int restarts = 5;  // After this many within the window there is a rest, and no history.
    int64_t window_ns = 60'000'000'000;
    int64_t rest_ns = 300'000'000'000;
    int64_t first_pause_ns = 100'000'000;  // Before the second one; twice as long each time.
    int64_t longest_pause_ns = 5'000'000'000;
  };

  explicit RestartPolicy(const Limits& limits) : limits_(limits) {}

  struct Pause {
    int64_t ns = 0;
    bool is_rest = false;
    friend bool operator==(const Pause&, const Pause&) = default;
  };

  // Counts a restart, and returns the pause before it.
  Pause Next(int64_t now_ns) {
    while (!restarts_ns_.empty() && now_ns - restarts_ns_.front() >= limits_.window_ns) {
      restarts_ns_.pop_front();
    }
    const auto recent = static_cast<int>(restarts_ns_.size());
    if (recent >= limits_.restarts) {
      Forget();
      return {.ns = limits_.rest_ns, .is_rest = true};
    }
    restarts_ns_.push_back(now_ns);
    if (recent == 0) return {};
    int64_t pause_ns = limits_.first_pause_ns;
    for (int i = 1; i < recent && pause_ns < limits_.longest_pause_ns; ++i) pause_ns *= 2;
    return {.ns = std::min(pause_ns, limits_.longest_pause_ns)};
  }

  // As if the worker had never ended.
  void Forget() { restarts_ns_.clear(); }

  int64_t rest_ns() const { return limits_.rest_ns; }

 private:
  const Limits limits_;
  std::deque<int64_t> restarts_ns_;
};

}  // namespace gemmd
