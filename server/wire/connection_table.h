// SPDX-License-Identifier: Apache-2.0
//
// Which connections there are, and of which peers. gRPC closes a connection and tells nobody, so
// what a file descriptor stands for is asked of the kernel: a connection has ended once its number
// is closed or stands for another file. That costs one fstat for each connection now and then, and
// no second descriptor.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "server/system/clock.h"

namespace gemmd {

struct ConnectionLimits {
  int64_t all = 0;
  int64_t of_peer = 0;
};

// Not safe for threads.
class ConnectionTable {
 public:
  enum class Verdict { kAdmitted, kTooMany, kTooManyOfPeer };

  // Borrows the clock.
  ConnectionTable(const ConnectionLimits& limits, const Clock& clock)
      : limits_(limits), clock_(clock) {}

  // Counts the connection, unless that would be more than a limit allows. `name` is that of the
  // other end, as gRPC names it; empty where it has none of its own.
  Verdict Admit(int descriptor, const std::string& peer, const std::string& name = "");

  // The bytes that the other end of this name has acknowledged since the connection began; nothing
  // where there is no such connection, or the system does not tell.
  std::optional<int64_t> AcknowledgedBytes(const std::string& name) const;

  // Forgets connections that have ended, at most so often that it takes a tenth of the time; the
  // count is right as of then.
  int64_t CountOpen();

 private:
  struct Connection {
    dev_t device = 0;
    ino_t inode = 0;
    std::map<std::string, int64_t>::iterator peer;
    std::string name;

    // Whether the number still stands for it.
    bool IsOf(int descriptor) const;
  };
  using Connections = std::unordered_map<int, Connection>;

  Verdict Judge(const std::string& peer) const;
  void Sweep();
  Connections::iterator Forget(Connections::iterator connection);

  const ConnectionLimits limits_;
  const Clock& clock_;
  Connections connections_;                           // By descriptor.
  std::unordered_map<std::string, int> descriptors_;  // By name.
  std::map<std::string, int64_t> peers_;              // How many connections each has.
  int64_t sweep_again_ns_ = 0;
};

}  // namespace gemmd
