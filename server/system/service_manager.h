// SPDX-License-Identifier: Apache-2.0
//
// What the daemon tells the service manager that started it, by the protocol of sd_notify(3):
// lines such as READY=1 in a datagram on a unix socket.
#pragma once

#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "server/system/file_descriptor.h"

namespace gemmd {

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
inline constexpr absl::Duration kLeastWatchdogTime = absl::Milliseconds(100);
absl::Duration WatchdogTime(std::string_view microseconds, std::string_view pid);

}  // namespace gemmd
