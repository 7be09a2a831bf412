// SPDX-License-Identifier: Apache-2.0
//
// Where gRPC takes connections that somebody else accepted. What a peer must show is a property of
// gRPC's acceptor, so there is one for each kind of connection.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>

#include "server/wire/listening_socket.h"

namespace gemmd {

class GrpcAcceptors {
 public:
  // Once for each kind, before the builder builds.
  void Add(ConnectionKind kind, std::shared_ptr<grpc::ServerCredentials> credentials,
           grpc::ServerBuilder& builder);

  // Gives gRPC the descriptor, which it owns from then on, as a connection of a kind that was
  // added. Threads: any, from the server's start to its end.
  void Give(ConnectionKind kind, int descriptor) const;

 private:
  // Constant once the server has started.
  std::map<ConnectionKind, std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>> all_;
};

}  // namespace gemmd
