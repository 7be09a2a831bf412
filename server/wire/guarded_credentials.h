// SPDX-License-Identifier: Apache-2.0
//
// Credentials of gRPC's that let each call pass the gate.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "server/wire/gate.h"

namespace gemmd {

// Somebody at the other end of connections: the user of unix sockets, empty where it is not known.
// It may be set before the first connection, not later.
struct ConnectionUser {
  std::string name;
};

// For connections that are not encrypted. Borrows both; they outlive gRPC's server. gRPC's own
// insecure credentials know no gate.
std::shared_ptr<grpc::ServerCredentials> GuardedPlainCredentials(const Gate& gate,
                                                                 const ConnectionUser& user);

// For encrypted ones: the credentials themselves, with the gate. Borrows the gate.
std::shared_ptr<grpc::ServerCredentials> Guarded(
    std::shared_ptr<grpc::ServerCredentials> credentials, const Gate& gate);

}  // namespace gemmd
