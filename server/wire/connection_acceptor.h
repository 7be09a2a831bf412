// SPDX-License-Identifier: Apache-2.0
//
// Accepts connections in gRPC's place, because gRPC 1.51 stops accepting for good once no file
// descriptor is left (CVE-2023-4785), and because it knows no bound of connections.
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

namespace gemmd {

// Who is at the other end of a connection: the daemon itself, or a peer that shows nothing over
// plain TCP, its user over a unix socket, nothing but an agreed key over TLS, a certificate over
// mTLS.
enum class ConnectionKind { kSelf, kPlain, kUnix, kTls, kMtls };

// That of connections to an address, which may be wrong in all that follows its prefix.
ConnectionKind ConnectionKindOf(absl::string_view address);

// Who may open the file of a unix socket. One that has only a name has no file, and is open to all.
struct SocketAccess {
  std::optional<mode_t> mode = {};  // Default: 0600, with a group 0660.
  std::optional<gid_t> group = {};  // Which the file gets; default: the daemon's own.

  mode_t mode_of_file() const { return mode.value_or(group ? 0660 : 0600); }
};

// The sockets behind one address of --listen.
class ListeningSocket {
 public:
  // Whether plain TCP may be reached from other machines.
  enum class PlainReach { kLoopback, kAnywhere };

  // `address` is HOST:PORT, [IPV6]:PORT, unix:PATH or unix-abstract:NAME; ipv4:, ipv6: and dns: may
  // stand before the first two, and tls: or mtls: before those. A name may stand for several
  // addresses, of which one must be had; port 0 takes a free port, the same for all. 0.0.0.0 and
  // [::] take both IPv4 and IPv6 where the host has both. The socket of a process that has gone is
  // taken over. `access` is for unix:PATH, whatever the umask is.
  // Errors: InvalidArgument for what is no address; FailedPrecondition for plain TCP that `reach`
  // does not allow; Unavailable where it cannot be listened on, with the system's reason; all name
  // the address.
  static absl::StatusOr<ListeningSocket> Open(const std::string& address,
                                              PlainReach reach = PlainReach::kLoopback,
                                              const SocketAccess& access = {});

  ListeningSocket(ListeningSocket&& other) = default;
  ListeningSocket& operator=(ListeningSocket&& other) = delete;
  // Removes a unix socket from its path, if it is still there.
  ~ListeningSocket();

  // With its prefix and the port that was chosen.
  const std::string& address() const { return address_; }
  ConnectionKind kind() const { return ConnectionKindOf(address_); }
  // They accept without waiting.
  const std::vector<FileDescriptor>& files() const { return files_; }

  using Place = std::pair<dev_t, ino_t>;  // A file, as device and inode.

 private:
  ListeningSocket() = default;

  std::string address_;
  std::string path_;  // Where it is a unix socket; removed at the end.
  Place place_;       // What was made there.
  std::vector<FileDescriptor> files_;
};

struct ConnectionLimits {
  int64_t all = 0;
  int64_t of_peer = 0;
  int64_t calls = 1000;  // Open at once on one of them, whatever the peer knows of settings.
};

// Which connections there are, and of which peers. gRPC closes a connection and tells nobody, so
// what a file descriptor stands for is asked of the kernel: a connection has ended once its number
// is closed or stands for another file. That costs one fstat for each connection now and then, and
// no second descriptor. Not safe for threads.
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
  // The bytes that have come over all connections that are open and of TCP.
  std::map<int, int64_t> ReceivedBytes() const;

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
  std::map<int, int64_t> ReceivedBytes() ABSL_LOCKS_EXCLUDED(mutex_);

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
