// SPDX-License-Identifier: Apache-2.0
//
// How the daemon reports that it serves: to a service manager, and through a file.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/system/files.h"

namespace gemmd {

// Sends messages to the service manager that started the daemon, with the protocol of sd_notify(3):
// lines such as READY=1 in a datagram on a unix socket.
class ServiceManager {
 public:
  // `address` is the value of the environment variable NOTIFY_SOCKET: a path, or a name after `@`.
  // If it is empty, nothing is sent.
  explicit ServiceManager(std::string_view address);

  // Does not wait, and does nothing if the manager is not receiving. Threads: any.
  void Tell(std::string_view lines) const;

 private:
  std::string address_;  // In the kernel's format: the first byte of a name is zero.
  FileDescriptor socket_;
};

// The interval at which the service manager expects WATCHDOG=1, from the environment variables
// WATCHDOG_USEC and WATCHDOG_PID; infinite if it expects none from this process, and at least
// kMinWatchdogTime.
inline constexpr absl::Duration kMinWatchdogTime = absl::Milliseconds(100);
absl::Duration WatchdogTime(std::string_view microseconds, std::string_view pid);

// Whether gemmd could have written a file with that text: nothing, or only addresses.
bool IsOfAddresses(const std::string& text);

// A file that exists while the daemon serves, and has its addresses, one per line. Not for use by
// several threads at once.
class ReadyFile {
 public:
  explicit ReadyFile(std::string path) : path_(std::move(path)) {}  // Empty: none.
  ReadyFile(const ReadyFile&) = delete;
  ReadyFile& operator=(const ReadyFile&) = delete;
  ~ReadyFile() { Remove(); }

  // Errors: InvalidArgument if the path is something that gemmd did not write: a device, a pipe, a
  // link, a folder or a file with other text.
  absl::Status Check() const;

  // Writes the file atomically, so that a reader never sees half of it, and replaces the file of a
  // killed gemmd. Errors: as Check; Unavailable if it cannot be written.
  absl::Status Write(const std::vector<std::string>& addresses);

  // Removes the file that Write has written, if it still exists.
  void Remove();

 private:
  const std::string path_;
  bool is_written_ = false;
  dev_t device_ = 0;
  ino_t number_ = 0;  // Identifies, with the device, the written file.
};

}  // namespace gemmd
