// SPDX-License-Identifier: Apache-2.0
//
// Listening sockets, the addresses of peers, and the hosts and users behind them.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "server/system/files.h"

namespace gemmd {

// Whether an IP address is reachable only from this machine: 127.0.0.0/8, also within IPv6, or ::1.
bool IsLoopback(const sockaddr* address);

// The peer as limits of one peer see it: the address without its port (for IPv6 the first 64 bits,
// as one host may have all addresses below them), or the user over a unix socket.
std::string PeerOf(int descriptor, const sockaddr_storage& address);

// The peer's name in gRPC, for example "ipv4:127.0.0.1:4000". Empty over a unix socket, where all
// peers have the same name.
std::string GrpcNameOf(const sockaddr_storage& address);

// The part of a peer's name (Gate::PeerOf) that all its connections share: "ipv4:192.0.2.1" of
// "ipv4:192.0.2.1:50123", and the user, "uid:1000", of "unix:uid:1000". Of an IPv6 address, the
// first 64 bits, "ipv6:%5B2001:db8:1:2", because such a network usually belongs to one host. If the
// text abbreviates zeros among these bits, a network may have up to three names, but no two
// networks share one.
std::string_view HostOf(std::string_view peer);

// The port that a TCP socket is bound to.
int PortOf(int socket);

// A listening socket, non-blocking and not inherited by children; on failure it is closed, with
// errno set. The IPv6 wildcard address also accepts IPv4. Only its owner can use the file of a unix
// socket (0600).
FileDescriptor ListenOn(const sockaddr* address, socklen_t bytes);

}  // namespace gemmd
