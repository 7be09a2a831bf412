// SPDX-License-Identifier: Apache-2.0
//
// The sockets behind one address of --listen.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/system/file_descriptor.h"

namespace gemmd {

class ListeningSocket {
 public:
  // `address` is HOST:PORT, [IPV6]:PORT, unix:PATH or unix-abstract:NAME; ipv4:, ipv6: and dns: may
  // stand before the first two. A name may stand for several addresses, of which one must be had;
  // port 0 takes a free port, the same for all. 0.0.0.0 and [::] take both IPv4 and IPv6 where the
  // host has both. The socket of a process that has gone is taken over.
  // Errors: InvalidArgument for what is no address; Unavailable where it cannot be listened on,
  // with the system's reason; both name the address.
  static absl::StatusOr<ListeningSocket> Open(const std::string& address);

  ListeningSocket(ListeningSocket&& other) = default;
  ListeningSocket& operator=(ListeningSocket&& other) = delete;
  // Removes the path of a unix socket.
  ~ListeningSocket();

  // With the port that was chosen.
  const std::string& address() const { return address_; }
  // They accept without waiting.
  const std::vector<FileDescriptor>& files() const { return files_; }

 private:
  ListeningSocket() = default;

  std::string address_;
  std::string path_;  // Where it is a unix socket; removed at the end.
  std::vector<FileDescriptor> files_;
};

}  // namespace gemmd
