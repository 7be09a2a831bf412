// SPDX-License-Identifier: Apache-2.0
//
// A worker that is started, greeted, watched and ended by a thread of its device, and started
// again. How that thread waits is its own affair: it may have others to answer meanwhile.
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

// Half a millisecond; less on a machine of few processors, and nothing below four.
int64_t DefaultSpinNs();

// A worker's program, and how it is called.
struct WorkerProgram {
  std::string binary;
  std::string device = {};  // The first argument.
  // The third and the fourth one: the limits of a GPU's memory and of the tensors in it, or the
  // threads of the host and whether freed memory is poisoned.
  std::array<int64_t, 2> kind_arguments = {};
  // Between jobs, the front's thread and the worker look for the next record for so long before
  // they sleep: waking them takes longer than a small job.
  int64_t spin_ns = DefaultSpinNs();
  // Whether it gives up its rights and gets WorkerEnvironment() in place of all of the front's.
  bool is_confined = true;
};

// The variables that a confined worker gets: those of the GPU's driver and its libraries, those of
// libraries for the CPU and their threads, the loader's folders, and the tests' own.
std::vector<std::string> WorkerEnvironment(char** environment);

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

// The process of a worker, and its successors. Threads: one, but for restarts().
class WorkerProcess {
 public:
  struct Options {
    std::string device;  // Its name, for messages.
    WorkerProgram program;
    uint64_t catalog = 0;  // CatalogFingerprint of the kind of device.
    absl::Duration start_timeout = absl::Seconds(60);
    RestartPolicy::Limits restarts;
  };

  // Waits for news of the worker, at most until the time. Errors: the reason to wait no longer.
  using Wait = std::function<absl::Status(int64_t until_ns)>;

  // A worker that was killed is gone at once, or after the driver has cleaned up.
  static constexpr absl::Duration kTimeToDie = absl::Seconds(10);

  // Holds the mutex while the process or its channel changes, so that other threads may use them
  // while they hold it.
  WorkerProcess(Options options, Mutex& mutex, Wait wait)
      : options_(std::move(options)),
        wait_(std::move(wait)),
        mutex_(mutex),
        policy_(options_.restarts) {}

  // Starts a process, which must know the same kernels; the last one has ended. It sees the
  // worker's end of the channel and, as kWorkerStaging, the file `staging`, and no other file of
  // the front but standard input, output and error. The kernel ends it with the calling thread.
  // Errors: FailedPrecondition where there is no such binary or it has other kernels; Unavailable;
  // those of its Hello; as Receive.
  absl::StatusOr<Hello> Start(int staging);

  // The next record. Errors: DeadlineExceeded where none comes in time; Unavailable where the
  // worker is gone; those of the wait.
  absl::StatusOr<Packet> Receive(absl::Duration timeout);

  // Sleeps until there is news of the worker or of `other`, at most until the time or for a tick.
  void Sleep(int64_t until_ns, pollfd* other = nullptr);

  void Kill();
  // Asks the process to end, and waits. Returns how it ended, "exit code 1" or "signal 9"; nothing
  // where it did not in time.
  std::optional<std::string> AwaitEnd(absl::Duration patience);

  // What callers are told while there is no worker.
  absl::Status NotReady(std::string_view why, const RestartPolicy::Pause& pause = {}) const;
  // What they are told of a product that the worker had.
  absl::Status LostProduct(bool was_started, std::string_view why) const;

  // Closing it asks the process to end.
  Channel& channel() { return channel_; }
  pid_t pid() const { return pid_; }  // 0: there is none, or it has ended.
  // Whether SIGKILL ended it: this process, an operator, or a system that is short of memory.
  bool was_killed() const { return was_killed_; }
  // Whether it was stopped by a signal, and so works no more. Does not wait.
  bool IsStopped() const;

  RestartPolicy& policy() { return policy_; }
  bool was_started() const { return was_started_; }
  // How many processes have followed the first one. Threads: any.
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
