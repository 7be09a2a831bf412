// SPDX-License-Identifier: Apache-2.0
//
// Addresses of sockets, and sockets that listen at them.
#pragma once

#include <sys/socket.h>

#include "server/system/files.h"

namespace gemmd {

// Whether an IP address is reached from this machine alone: 127.0.0.0/8, also within IPv6, or ::1.
bool IsLoopback(const sockaddr* address);

// The port that a TCP socket is bound to.
int PortOf(int socket);

// A socket that listens, and neither blocks nor lives on in children; closed, with errno, where
// that failed. An address of IPv6 that stands for all takes IPv4 too. The file of a unix socket is
// open to its owner alone (0600).
FileDescriptor ListenOn(const sockaddr* address, socklen_t bytes);

}  // namespace gemmd
