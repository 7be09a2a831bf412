// SPDX-License-Identifier: Apache-2.0
//
// A worker as a process: started, ended and waited for by the front.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/system/file_descriptor.h"

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

}  // namespace gemmd
