// SPDX-License-Identifier: Apache-2.0
//
// Where gRPC takes connections of unix sockets. gRPC tells nothing of the user at the other end,
// but each of its acceptors has credentials of its own: so there is one for each user that rules
// name.
#pragma once

#include <grpcpp/grpcpp.h>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "server/system/mutex.h"
#include "server/wire/gate.h"
#include "server/wire/guarded_credentials.h"

namespace gemmd {

class UserAcceptors {
 public:
  // So many users of the rules are told apart as long as the daemon runs; others are as those that
  // no rule names.
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
  Place others_;
  std::array<Place, kMostUsers> places_;  // Those not in `places_of_users_` have no connections.
  Mutex mutex_;
  std::map<std::string, size_t> places_of_users_ ABSL_GUARDED_BY(mutex_);
};

// "uid:1000": the user that opened the other end of a unix socket; empty where it cannot be known.
std::string UserOf(int descriptor);

}  // namespace gemmd
