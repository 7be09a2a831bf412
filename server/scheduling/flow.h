// SPDX-License-Identifier: Apache-2.0
//
// Who shares a turn: a caller and, within its turn, one of its connections.
#pragma once

#include <cstdint>
#include <string_view>

namespace gemmd {

// Whom a job is for. Borrows the name.
struct FlowId {
  std::string_view caller;  // An identity of the rules or a host.
  uint64_t connection = 0;  // Another number for each connection of the caller.
};

// The part of a peer as gRPC names it that its connections have in common: "ipv4:192.0.2.1" of
// "ipv4:192.0.2.1:50123". All peers of unix sockets are one host; a path that a caller binds to is
// its own choice.
std::string_view HostOf(std::string_view peer);

}  // namespace gemmd
