// SPDX-License-Identifier: Apache-2.0
//
// How the daemon tells whoever started it that it serves: a service manager, and whoever looks for
// a file.
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

// What the daemon tells the service manager that started it, by the protocol of sd_notify(3):
// lines such as READY=1 in a datagram on a unix socket.
class ServiceManager {
 public:
  // `address` is that of the environment variable NOTIFY_SOCKET: a path, or a name after `@`. Where
  // it is empty, nobody is told anything.
  explicit ServiceManager(std::string_view address);

  // Does not wait, and does nothing where the manager takes nothing. Threads: any.
  void Tell(std::string_view lines) const;

 private:
  std::string address_;  // As the kernel wants it: of a name, the first byte is zero.
  FileDescriptor socket_;
};

// How often the service manager wants a WATCHDOG=1, by the environment variables WATCHDOG_USEC and
// WATCHDOG_PID; infinite where it wants none of this process, and never less than can be kept.
inline constexpr absl::Duration kMinWatchdogTime = absl::Milliseconds(100);
absl::Duration WatchdogTime(std::string_view microseconds, std::string_view pid);

// Whether gemmd could have written a file with that text: nothing, or addresses alone.
bool IsOfAddresses(const std::string& text);

// A file that is there while the daemon serves, and holds its addresses, one a line. Not for use by
// several threads at once.
class ReadyFile {
 public:
  explicit ReadyFile(std::string path) : path_(std::move(path)) {}  // Empty: none.
  ReadyFile(const ReadyFile&) = delete;
  ReadyFile& operator=(const ReadyFile&) = delete;
  ~ReadyFile() { Remove(); }

  // Errors: InvalidArgument where something is there that gemmd did not write: a device, a pipe, a
  // link, a folder or a file with another text.
  absl::Status Check() const;

  // All at once, so that a reader never sees half of the file; what a gemmd that was killed has
  // left makes room. Errors: as Check; Unavailable where it cannot be written.
  absl::Status Write(const std::vector<std::string>& addresses);

  // Removes what Write has written, where it is still there.
  void Remove();

 private:
  const std::string path_;
  bool is_written_ = false;
  dev_t device_ = 0;
  ino_t number_ = 0;  // With the device it says which file was written.
};

}  // namespace gemmd
