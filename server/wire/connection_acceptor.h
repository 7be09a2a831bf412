// SPDX-License-Identifier: Apache-2.0
//
// Accepts connections in gRPC's place, because gRPC 1.51 stops accepting for good once no file
// descriptor is left (CVE-2023-4785), and because it knows no bound of connections.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/metrics/observer.h"
#include "server/system/clock.h"
#include "server/system/file_descriptor.h"
#include "server/system/mutex.h"
#include "server/wire/connection_table.h"
#include "server/wire/listening_socket.h"

namespace gemmd {

// Who is at the other end, for the limit of each peer: the address without its port, of IPv6 the
// first 64 bits, which one host may have all of; over a unix socket, the user.
std::string PeerOf(int descriptor, const sockaddr_storage& address);

// Its name in gRPC: "ipv4:127.0.0.1:4000"; empty over a unix socket, where all have the same.
std::string GrpcNameOf(const sockaddr_storage& address);

class ConnectionAcceptor {
 public:
  // Owns the descriptor from then on. `kind` is that of the address it came to.
  using Take = std::function<void(ConnectionKind kind, int descriptor)>;

  // Connections that are one too many are closed at once. `take` is called from the acceptor's
  // thread. A peer that acknowledges nothing for `unacknowledged` is cut off by the kernel.
  // Borrows the clock. Errors: Unavailable where no file descriptor is left.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Start(
      std::vector<ListeningSocket> sockets, const ConnectionLimits& limits,
      absl::Duration unacknowledged, Take take, const Clock& clock);

  // Stops listening. Connections live on.
  ~ConnectionAcceptor();

  // Threads: any.
  ConnectionCounts counts() ABSL_LOCKS_EXCLUDED(mutex_);

  // As of ConnectionTable. Threads: any.
  std::optional<int64_t> AcknowledgedBytes(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  ConnectionAcceptor(std::vector<ListeningSocket> sockets, const ConnectionLimits& limits,
                     absl::Duration unacknowledged, Take take, FileDescriptor wake,
                     const Clock& clock);
  void Run();
  bool AcceptOne(ConnectionKind kind, int listener) ABSL_LOCKS_EXCLUDED(mutex_);
  bool ShedOne(int listener);
  void Give(ConnectionKind kind, FileDescriptor accepted, const sockaddr_storage& address)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant after construction.
  const std::vector<ListeningSocket> sockets_;
  const ConnectionLimits limits_;
  const absl::Duration unacknowledged_;
  const Take take_;
  const FileDescriptor wake_;  // Readable once the acceptor is to end.
  const Clock& clock_;

  // Owned by the thread. The spare one is closed to accept, and close, a connection for which no
  // other descriptor is left: otherwise its peer would wait, and the thread would turn around it.
  FileDescriptor spare_;
  int64_t accept_again_ns_ = 0;

  std::atomic<int64_t> accepted_ = 0;
  std::atomic<int64_t> refused_of_all_ = 0;
  std::atomic<int64_t> refused_of_peer_ = 0;
  std::atomic<int64_t> refused_for_files_ = 0;
  Mutex mutex_;
  ConnectionTable table_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace gemmd
