// SPDX-License-Identifier: Apache-2.0
#include "server/wire/grpc_acceptors.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/text.h"
#include "server/wire/calls.h"

namespace gemmd {

namespace {

constexpr std::string_view kPathKey = ":path";
constexpr std::string_view kAuthorizationKey = "authorization";

std::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

// What a processor is made for.
struct Post {
  const Gate& gate;
  const ConnectionUser* user;  // Null if it is not known.
};

// Takes no metadata away: handlers look at them too.
void ProcessPlain(void* state, grpc_auth_context* connection, const grpc_metadata* metadata,
                  size_t count, grpc_process_auth_metadata_done_cb done, void* user_data) {
  const Post& post = *static_cast<const Post*>(state);
  std::string_view path;
  Evidence evidence;
  for (size_t i = 0; i < count; ++i) {
    const std::string_view key = View(metadata[i].key);
    if (key == kPathKey) path = View(metadata[i].value);
    if (key == kAuthorizationKey) evidence.authorization.push_back(View(metadata[i].value));
  }
  if (post.user != nullptr) {
    evidence.user = post.user->name;
    post.gate.NoteUser(*connection, post.user->name, post.user->is_operator);
  }
  const grpc::Status status = ToGrpcStatus(post.gate.Admit(path, evidence));
  done(user_data, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.error_code()),
       status.ok() ? nullptr : status.error_message().c_str());
}

void DeletePost(void* state) { delete static_cast<Post*>(state); }

grpc_server_credentials* PlainWithGate(const Gate& gate, const ConnectionUser* user) {
  grpc_server_credentials* const credentials = grpc_insecure_server_credentials_create();
  grpc_server_credentials_set_auth_metadata_processor(
      credentials, {.process = ProcessPlain, .destroy = DeletePost, .state = new Post{gate, user}});
  return credentials;
}

#ifdef GEMMD_GRPC_CREDENTIALS_ADD_PORTS
class PlainCredentials final : public grpc::ServerCredentials {
 public:
  explicit PlainCredentials(grpc_server_credentials* core) : core_(core) {}
  ~PlainCredentials() override { grpc_server_credentials_release(core_); }

  // They have their own.
  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), core_);
  }

  grpc_server_credentials* const core_;
};
#else
class PlainCredentials final : public grpc::ServerCredentials {
 public:
  explicit PlainCredentials(grpc_server_credentials* core) : grpc::ServerCredentials(core) {}

  // They have their own.
  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}
};
#endif

class Processor final : public grpc::AuthMetadataProcessor {
 public:
  explicit Processor(const Gate& gate) : gate_(gate) {}

  // It takes so little time that gRPC's own thread may wait for it.
  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* connection,
                       OutputMetadata* /*consumed*/, OutputMetadata* /*response*/) override {
    Evidence evidence;
    const auto [first, last] =
        metadata.equal_range({kAuthorizationKey.data(), kAuthorizationKey.size()});
    for (auto value = first; value != last; ++value) {
      evidence.authorization.push_back(View(value->second));
    }
    for (const char* const property : {GRPC_PEER_URI_PROPERTY_NAME, GRPC_PEER_DNS_PROPERTY_NAME}) {
      for (const grpc::string_ref& name : connection->FindPropertyValues(property)) {
        evidence.names.push_back(View(name));
      }
    }
    const auto path = metadata.find({kPathKey.data(), kPathKey.size()});
    return ToGrpcStatus(
        gate_.Admit(path == metadata.end() ? std::string_view() : View(path->second), evidence));
  }

 private:
  const Gate& gate_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> GuardedPlainCredentials(const Gate& gate,
                                                                 const ConnectionUser* user) {
  // Whatever looks at each call takes time of each.
  if (gate.is_open() && user == nullptr) return grpc::InsecureServerCredentials();
  return std::make_shared<PlainCredentials>(PlainWithGate(gate, user));
}

std::shared_ptr<grpc::ServerCredentials> Guarded(
    std::shared_ptr<grpc::ServerCredentials> credentials, const Gate& gate) {
  if (!gate.is_open()) credentials->SetAuthMetadataProcessor(std::make_shared<Processor>(gate));
  return credentials;
}

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

bool IsOperator(uid_t user, absl::Span<const gid_t> groups, uid_t own,
                std::optional<gid_t> operators) {
  if (user == 0 || user == own) return true;
  return operators && std::find(groups.begin(), groups.end(), *operators) != groups.end();
}

namespace {

// The groups of whoever opened the other end beside its first one; none where they are not known.
std::vector<gid_t> MoreGroupsOf(int descriptor) {
  std::vector<gid_t> groups(32);
  while (true) {
    auto bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    const bool is_told =
        getsockopt(descriptor, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) == 0;
    const size_t count = bytes / sizeof(gid_t);
    if (!is_told && (errno != ERANGE || count <= groups.size())) return {};
    groups.resize(count);
    if (is_told) return groups;
  }
}

}  // namespace

ConnectionUser UserOf(int descriptor, std::optional<gid_t> operators) {
  ucred user = {};
  socklen_t bytes = sizeof(user);
  if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &user, &bytes) != 0) return {};
  std::vector<gid_t> groups = MoreGroupsOf(descriptor);
  groups.push_back(user.gid);
  return {.name = Concat(kUserPrefix, user.uid),
          .is_operator = IsOperator(user.uid, groups, geteuid(), operators)};
}

void UserAcceptors::AddTo(grpc::ServerBuilder& builder) {
  const auto add = [&](const ConnectionUser* user) {
    return builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        GuardedPlainCredentials(gate_, user));
  };
  others_ = add(nullptr);
  other_operators_.user.is_operator = true;
  other_operators_.acceptor = add(&other_operators_.user);
  for (Place& place : places_) place.acceptor = add(&place.user);
}

UserAcceptors::Acceptor& UserAcceptors::AcceptorOf(const ConnectionUser& user) {
  Acceptor& others = user.is_operator ? *other_operators_.acceptor : *others_;
  if (user.name.empty() || !gate_.TellsApart(user.name)) return others;
  MutexLock lock(&mutex_);
  const std::pair key(user.name, user.is_operator);
  auto known = places_of_users_.find(key);
  if (known == places_of_users_.end()) {
    if (places_of_users_.size() == places_.size()) return others;
    known = places_of_users_.emplace(key, places_of_users_.size()).first;
    places_[known->second].user = user;
  }
  return *places_[known->second].acceptor;
}

void UserAcceptors::Give(int descriptor) {
  Acceptor::NewConnectionParameters connection;
  connection.fd = descriptor;
  AcceptorOf(UserOf(descriptor, operators_)).HandleNewConnection(&connection);
}

}  // namespace gemmd
