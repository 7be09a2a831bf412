// SPDX-License-Identifier: Apache-2.0
//
// Where gRPC takes connections that somebody else accepted, and the credentials by which each call
// on them passes the gate.
#pragma once

#include <grpcpp/grpcpp.h>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "server/system/mutex.h"
#include "server/wire/connection_acceptor.h"
#include "server/wire/gate.h"

namespace gemmd {

// The user at the other end of connections. It is set before the first one, not later.
struct ConnectionUser {
  std::string name;
};

// For connections that are not encrypted, of a user if `user` is not null. Borrows both; they
// outlive gRPC's server. gRPC's own insecure credentials know neither a gate nor a user.
std::shared_ptr<grpc::ServerCredentials> GuardedPlainCredentials(const Gate& gate,
                                                                 const ConnectionUser* user);

// For encrypted ones: the credentials themselves, with the gate. Borrows the gate.
std::shared_ptr<grpc::ServerCredentials> Guarded(
    std::shared_ptr<grpc::ServerCredentials> credentials, const Gate& gate);

// Where gRPC takes connections that somebody else accepted. What a peer must show is a property of
// gRPC's acceptor, so there is one for each kind of connection.
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

// Where gRPC takes connections of unix sockets. gRPC tells nothing of the user at the other end,
// but each of its acceptors has credentials of its own: so there is one for each user, if there are
// rules for each that they name.
class UserAcceptors {
 public:
  // So many users are told apart as long as the daemon runs; others are one, and as those that no
  // rule names.
  static constexpr size_t kMostUsers = 64;

  // Borrows the gate.
  explicit UserAcceptors(const Gate& gate) : gate_(gate) {}

  // Before the builder builds.
  void AddTo(grpc::ServerBuilder& builder);

  // Gives gRPC the connection, which it owns from then on. Threads: any.
  void Give(int descriptor) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
  struct Place {
    ConnectionUser user;
    std::unique_ptr<Acceptor> acceptor;
  };
  Acceptor& AcceptorOf(const std::string& user) ABSL_LOCKS_EXCLUDED(mutex_);

  const Gate& gate_;
  std::unique_ptr<Acceptor> others_;
  std::array<Place, kMostUsers> places_;  // Those not in `places_of_users_` have no connections.
  Mutex mutex_;
  std::map<std::string, size_t> places_of_users_ ABSL_GUARDED_BY(mutex_);
};

// "uid:1000": the user that opened the other end of a unix socket; empty where it cannot be known.
std::string UserOf(int descriptor);

}  // namespace gemmd
