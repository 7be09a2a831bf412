// SPDX-License-Identifier: Apache-2.0
//
// Starts, greets, watches, ends and restarts a worker, on a thread of its device. That thread
// provides its own way of waiting, because it may have other work meanwhile.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/crossing/channel.h"
#include "server/crossing/protocol.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

// Half a millisecond; less with few processors, and 0 below four.
int64_t DefaultSpinNs();

// A worker's program and arguments.
struct WorkerProgram {
  std::string binary;
  std::string device = {};  // The first argument.
  // The third and fourth arguments: for a GPU, the limits of its memory and of tensors in it; for
  // the host, the threads and whether freed memory is poisoned.
  std::array<int64_t, 2> kind_arguments = {};
  // How long the front's thread and the worker spin for the next record before they sleep: waking
  // them takes longer than a small job.
  int64_t spin_ns = DefaultSpinNs();
  // Whether it is confined and gets WorkerEnvironment() instead of the front's environment.
  bool is_confined = true;
};

// The environment variables of a confined worker: those of the GPU driver and its libraries, of CPU
// libraries and their threads, of the loader, and of the tests.
std::vector<std::string> WorkerEnvironment(char** environment);

// Decides when to restart a worker that ended. After too many restarts in a short time, it pauses
// longer.
class RestartPolicy {
 public:
  struct Limits {
    int restarts =
        5;  // After this many within the window, there is a rest, and the history is cleared.
    int64_t window_ns = 60'000'000'000;
    // Long enough for a GPU that was reset, or an operator, to be there; an operator can end it.
    int64_t rest_ns = 300'000'000'000;
    int64_t first_pause_ns = 100'000'000;  // Before the second restart; doubles each time.
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

// A worker process and its successors. Threads: one, except restarts().
class WorkerProcess {
 public:
  struct Options {
    std::string device;  // Its name, for messages.
    WorkerProgram program;
    uint64_t catalog = 0;  // CatalogFingerprint of the kind of device.
    absl::Duration start_timeout = absl::Seconds(60);
    RestartPolicy::Limits restarts;
  };

  // Waits for an event of the worker, at most until the time. Errors: the reason to stop waiting.
  using Wait = std::function<absl::Status(int64_t until_ns)>;

  // A killed worker exits at once, or after the driver has cleaned up.
  static constexpr absl::Duration kTimeToDie = absl::Seconds(10);

  // Holds the mutex while the process or its channel changes, so that other threads may use them
  // under it.
  WorkerProcess(Options options, Mutex& mutex, Wait wait)
      : options_(std::move(options)),
        wait_(std::move(wait)),
        mutex_(mutex),
        policy_(options_.restarts) {}

  // Starts a process, which must have the same kernels; the previous one must have ended. It
  // inherits the worker's end of the channel and, as kWorkerStaging, the file `staging`, and no
  // other file of the front except standard input, output and error. The kernel ends it with the
  // calling thread. Errors: FailedPrecondition if there is no such binary, or it has other kernels;
  // Unavailable; those of its Hello and of Receive.
  absl::StatusOr<Hello> Start(int staging);

  // The next record. Errors: DeadlineExceeded on a timeout; Unavailable if the worker is gone;
  // those of `wait`.
  absl::StatusOr<Packet> Receive(absl::Duration timeout);

  // Sleeps until an event of the worker or of `other`, at most until the time or for a tick.
  void Sleep(int64_t until_ns, pollfd* other = nullptr);

  void Kill();
  // Asks the process to end, and waits. Returns how it ended, "exit code 1" or "signal 9"; nullopt
  // on a timeout.
  std::optional<std::string> AwaitEnd(absl::Duration patience);

  // The status for callers while there is no worker.
  absl::Status NotReady(std::string_view why, const RestartPolicy::Pause& pause = {}) const;
  // The status of a product lost with its worker.
  absl::Status LostProduct(bool was_started, std::string_view why) const;

  // Closing it asks the process to end.
  Channel& channel() { return channel_; }
  const Channel& channel() const { return channel_; }
  pid_t pid() const { return pid_; }  // 0: none, or ended.
  // Whether SIGKILL ended it: from this process, an operator, or a system short of memory.
  bool was_killed() const { return was_killed_; }
  // Whether it is stopped by a signal. Does not wait.
  bool IsStopped() const;

  RestartPolicy& policy() { return policy_; }
  bool was_started() const { return was_started_; }
  // The number of processes after the first one. Threads: any.
  int64_t restarts() const { return restarts_; }

 private:
  absl::Status Spawn(int staging);
  std::optional<std::string> TryReap();

  const Options options_;
  const Wait wait_;
  const SteadyClock clock_;
  Mutex& mutex_;
  Channel channel_;
  pid_t pid_ = 0;
  std::string end_ = "not started";
  bool was_killed_ = false;
  RestartPolicy policy_;
  bool was_started_ = false;
  std::atomic<int64_t> restarts_ = 0;
};

}  // namespace gemmd
