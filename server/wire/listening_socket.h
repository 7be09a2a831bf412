// SPDX-License-Identifier: Apache-2.0
//
// The sockets behind one address of --listen.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/system/file_descriptor.h"

namespace gemmd {

// Who is at the other end of a connection: the daemon itself, or a peer that shows nothing over
// plain TCP, its user over a unix socket, nothing but an agreed key over TLS, a certificate over
// mTLS.
enum class ConnectionKind { kSelf, kPlain, kUnix, kTls, kMtls };

// That of connections to an address, which may be wrong in all that follows its prefix.
ConnectionKind ConnectionKindOf(absl::string_view address);

class ListeningSocket {
 public:
  // Whether plain TCP may be reached from other machines.
  enum class PlainReach { kLoopback, kAnywhere };

  // `address` is HOST:PORT, [IPV6]:PORT, unix:PATH or unix-abstract:NAME; ipv4:, ipv6: and dns: may
  // stand before the first two, and tls: or mtls: before those. A name may stand for several
  // addresses, of which one must be had; port 0 takes a free port, the same for all. 0.0.0.0 and
  // [::] take both IPv4 and IPv6 where the host has both. The socket of a process that has gone is
  // taken over.
  // Errors: InvalidArgument for what is no address; FailedPrecondition for plain TCP that `reach`
  // does not allow; Unavailable where it cannot be listened on, with the system's reason; all name
  // the address.
  static absl::StatusOr<ListeningSocket> Open(const std::string& address,
                                              PlainReach reach = PlainReach::kLoopback);

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

}  // namespace gemmd
