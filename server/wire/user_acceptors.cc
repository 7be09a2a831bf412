// SPDX-License-Identifier: Apache-2.0
#include "server/wire/user_acceptors.h"

#include <sys/socket.h>

#include "kernels/text.h"

namespace gemmd {

std::string UserOf(int descriptor) {
  ucred user = {};
  socklen_t bytes = sizeof(user);
  if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &user, &bytes) != 0) return "";
  return Concat(kUserPrefix, user.uid);
}

void UserAcceptors::AddTo(grpc::ServerBuilder& builder) {
  const auto add = [&](Place& place) {
    place.acceptor = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        GuardedPlainCredentials(gate_, place.user));
  };
  add(others_);
  if (gate_.is_open()) return;
  for (Place& place : places_) add(place);
}

UserAcceptors::Acceptor& UserAcceptors::AcceptorOf(const std::string& user) {
  if (user.empty() || !gate_.Knows(user)) return *others_.acceptor;
  MutexLock lock(&mutex_);
  auto known = places_of_users_.find(user);
  if (known == places_of_users_.end()) {
    if (places_of_users_.size() == places_.size()) return *others_.acceptor;
    known = places_of_users_.emplace(user, places_of_users_.size()).first;
    places_[known->second].user.name = user;
  }
  return *places_[known->second].acceptor;
}

void UserAcceptors::Give(int descriptor) {
  Acceptor::NewConnectionParameters connection;
  connection.fd = descriptor;
  AcceptorOf(UserOf(descriptor)).HandleNewConnection(&connection);
}

}  // namespace gemmd
