// SPDX-License-Identifier: Apache-2.0
//
// Who shares a turn: until callers are known by name, a host.
#pragma once

#include <string_view>

namespace gemmd {

// The part of a peer as gRPC names it that its connections have in common: "ipv4:192.0.2.1" of
// "ipv4:192.0.2.1:50123". All callers over unix sockets are one, because gRPC does not tell them
// apart, and a path that a caller binds to is its own choice.
std::string_view FlowOf(std::string_view peer);

}  // namespace gemmd
