// SPDX-License-Identifier: Apache-2.0
//
// Where gRPC takes connections that somebody else accepted, and the credentials by which each call
// on them passes the gate.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "server/system/mutex.h"
#include "server/wire/connection_acceptor.h"
#include "server/wire/gate.h"

namespace gemmd {

// The user at the other end of connections. It is set before the first one, not later.
struct ConnectionUser {
  std::string name;  // Empty if it is not told apart from others.
  bool is_operator = false;
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

  // Borrows the gate. `operators` is the group of those who may operate the daemon beside root and
  // its own user.
  UserAcceptors(const Gate& gate, std::optional<gid_t> operators)
      : gate_(gate), operators_(operators) {}

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
  Acceptor& AcceptorOf(const ConnectionUser& user) ABSL_LOCKS_EXCLUDED(mutex_);

  const Gate& gate_;
  const std::optional<gid_t> operators_;
  std::unique_ptr<Acceptor> others_;
  // Operators are known as such, whoever came before them.
  Place other_operators_;
  std::array<Place, kMostUsers> places_;  // Those not in `places_of_users_` have no connections.
  Mutex mutex_;
  // One user may be both, by the groups of its processes.
  std::map<std::pair<std::string, bool>, size_t> places_of_users_ ABSL_GUARDED_BY(mutex_);
};

// Whether a user with these groups is an operator: root, the user `own` of the daemon, or a member
// of the group of operators, where there is one.
bool IsOperator(uid_t user, absl::Span<const gid_t> groups, uid_t own,
                std::optional<gid_t> operators);

// Who opened the other end of a unix socket, as the kernel noted it then: "uid:1000"; without a
// name where it cannot be known.
ConnectionUser UserOf(int descriptor, std::optional<gid_t> operators);

}  // namespace gemmd
