// SPDX-License-Identifier: Apache-2.0
#include "server/wire/grpc_acceptors.h"

#include <utility>

namespace gemmd {

void GrpcAcceptors::Add(ConnectionKind kind, std::shared_ptr<grpc::ServerCredentials> credentials,
                        grpc::ServerBuilder& builder) {
  all_[kind] = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      std::move(credentials));
}

void GrpcAcceptors::Give(ConnectionKind kind, int descriptor) const {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.fd = descriptor;
  all_.at(kind)->HandleNewConnection(&connection);
}

}  // namespace gemmd
