// SPDX-License-Identifier: Apache-2.0
//
// Accepts connections in gRPC's place, because gRPC 1.51 stops accepting for good once no file
// descriptor is left (CVE-2023-4785), and because it has no limit on connections.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/metrics/observer.h"
#include "server/system/clock.h"
#include "server/system/files.h"
#include "server/system/mutex.h"
#include "server/wire/socket_watch.h"

namespace gemmd {

// Who is at the other end of a connection, and what proves it. kSelf: the daemon itself. kPlain: a
// peer over TCP, nothing proved. kUnix: the user over a unix socket. kTls: nothing but the agreed
// key. kMtls: a certificate.
enum class ConnectionKind { kSelf, kPlain, kUnix, kTls, kMtls };

// The kind of connections to `address`. Only its prefix is read; the rest may be invalid.
ConnectionKind ConnectionKindOf(absl::string_view address);

// Who may open the file of a unix socket. An abstract socket has no file and is open to all users.
struct SocketAccess {
  std::optional<mode_t> mode = {};  // Default: 0600, or 0660 with a group.
  std::optional<gid_t> group = {};  // The file's group. Default: the daemon's own.

  mode_t mode_of_file() const { return mode.value_or(group ? 0660 : 0600); }
};

// The sockets behind one address of --listen.
class ListeningSocket {
 public:
  // From where plain TCP may be reached.
  enum class PlainReach { kLoopback, kAnywhere };

  // `address` is HOST:PORT, [IPV6]:PORT, unix:PATH or unix-abstract:NAME. ipv4:, ipv6: and dns: may
  // precede the first two, and tls: or mtls: may precede those. A name may stand for several
  // addresses, of which one must be available; port 0 picks a free port, the same for all. 0.0.0.0
  // and [::] accept both IPv4 and IPv6 if the host has both. The socket file of a process that has
  // ended is taken over. `access` applies to unix:PATH, whatever the umask is. Errors, all naming
  // the address: InvalidArgument if it is not an address; FailedPrecondition for plain TCP that
  // `reach` does not allow; Unavailable, with the system's reason, if listening fails.
  static absl::StatusOr<ListeningSocket> Open(const std::string& address,
                                              PlainReach reach = PlainReach::kLoopback,
                                              const SocketAccess& access = {});

  ListeningSocket(ListeningSocket&& other) = default;
  ListeningSocket& operator=(ListeningSocket&& other) = delete;
  // Removes the unix socket's file, if the path still leads to it.
  ~ListeningSocket();

  // The address with its prefix and the port that was chosen.
  const std::string& address() const { return address_; }
  ConnectionKind kind() const { return ConnectionKindOf(address_); }
  // Non-blocking.
  const std::vector<FileDescriptor>& files() const { return files_; }

  using Place = std::pair<dev_t, ino_t>;  // A file, as device and inode.

 private:
  ListeningSocket() = default;

  std::string address_;
  std::string path_;  // Of a unix socket; removed by the destructor.
  Place place_;       // The socket file that was made there.
  std::vector<FileDescriptor> files_;
};

struct ConnectionLimits {
  int64_t all = 0;
  int64_t of_peer = 0;
  // Open at once on one of them, whatever the peer knows of settings. Envoy begins up to 1,024
  // before it has them.
  int64_t calls = 2048;
};

// The open connections and their peers. gRPC closes connections without notice, so the table asks
// the kernel what a file descriptor stands for: a connection has ended once its descriptor is
// closed or stands for another file. That costs one fstat per connection now and then, and no
// second descriptor. Not thread-safe.
class ConnectionTable {
 public:
  enum class Verdict { kAdmitted, kTooMany, kTooManyOfPeer };

  // Borrows the clock.
  ConnectionTable(const ConnectionLimits& limits, const Clock& clock)
      : limits_(limits), clock_(clock) {}

  // Counts the connection, unless that would exceed a limit.
  Verdict Admit(int descriptor, const std::string& peer);

  // Counts the open connections. First forgets those that have ended, but only so often that it
  // takes at most a tenth of the time, so the count may be that of the last sweep.
  int64_t CountOpen();

 private:
  struct Connection {
    dev_t device = 0;
    ino_t inode = 0;
    std::map<std::string, int64_t>::iterator peer;

    // Whether the descriptor still stands for this connection.
    bool IsOf(int descriptor) const;
  };
  using Connections = std::unordered_map<int, Connection>;

  Verdict Judge(const std::string& peer) const;
  void Sweep();
  Connections::iterator Forget(Connections::iterator connection);

  const ConnectionLimits limits_;
  const Clock& clock_;
  Connections connections_;               // By descriptor.
  std::map<std::string, int64_t> peers_;  // The number of connections of each peer.
  int64_t sweep_again_ns_ = 0;
};

class ConnectionAcceptor {
 public:
  // Takes ownership of the descriptor. `kind` is that of the address that the peer connected to.
  using Take = std::function<void(ConnectionKind kind, int descriptor)>;

  // New connections of one peer at once, and in each second after that. One costs transport
  // objects or the handshake of TLS, which takes about a millisecond of a processor.
  static constexpr int64_t kMaxAccepts = 1000;

  // Connections above a limit, or above a peer's rate, are closed at once.
  // `take` is called from the acceptor's thread. The kernel closes a connection whose peer
  // acknowledges nothing for `unacknowledged`. Borrows the clock. Errors: Unavailable if no file
  // descriptor is left.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Start(
      std::vector<ListeningSocket> sockets, const ConnectionLimits& limits,
      absl::Duration unacknowledged, Take take, const Clock& clock);

  // Stops listening. Accepted connections stay open.
  ~ConnectionAcceptor();

  // Threads: any.
  ConnectionCounts counts() ABSL_LOCKS_EXCLUDED(mutex_);

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
  const FileDescriptor wake_;  // Readable once the acceptor must end.
  const Clock& clock_;

  // Owned by the thread. If no other descriptor is left, the spare one is closed so that a
  // connection can be accepted and closed: otherwise its peer would wait and the thread would spin.
  FileDescriptor spare_;
  int64_t accept_again_ns_ = 0;
  PeerBudgets<TokenBucket> budgets_;  // Of new connections.

  std::atomic<int64_t> accepted_ = 0;
  std::atomic<int64_t> refused_of_all_ = 0;
  std::atomic<int64_t> refused_of_peer_ = 0;
  std::atomic<int64_t> refused_for_rate_ = 0;
  std::atomic<int64_t> refused_for_files_ = 0;
  Mutex mutex_;
  ConnectionTable table_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace gemmd
