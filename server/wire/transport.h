// SPDX-License-Identifier: Apache-2.0
//
// What gRPC and the operating system are told about limits, timeouts and addresses, where gRPC
// takes connections that somebody else accepted, and the credentials by which each call on them
// passes the gate.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/system/mutex.h"
#include "server/wire/certificates.h"
#include "server/wire/connection_acceptor.h"
#include "server/wire/gate.h"
#include "server/wire/incoming.h"

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
  static constexpr size_t kMaxUsers = 64;

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
  std::array<Place, kMaxUsers> places_;  // Those not in `places_of_users_` have no connections.
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

// What gRPC is told. The defaults are those of the command line.
struct TransportOptions {
  // host:port, unix:/path, tls:host:port, mtls:host:port.
  std::vector<std::string> listen = {"127.0.0.1:8470"};
  bool insecure_allow_remote = false;  // Whether a plain host:port may be other than loopback.
  CertificateFiles certificates;       // Needed for tls: and mtls:.
  SocketAccess unix_sockets;           // The group is that of the operators, too.
  int64_t max_message_bytes = int64_t{512} << 20;
  int64_t memory_quota_bytes = 0;  // For gRPC's buffers; 0 takes a quarter of the memory limit.
  int max_concurrent_streams = 100;
  // How many connections there are at once; 0: see ConnectionLimitsOf.
  int64_t max_connections = 0;
  absl::Duration handshake_timeout = absl::Seconds(5);
  // Longer than the pauses of most clients, so that few have to connect again.
  absl::Duration max_connection_idle = absl::Minutes(10);
  absl::Duration max_connection_age = absl::Minutes(30);
  // Longer than nearly all products take; clients try calls that are cut again.
  absl::Duration max_connection_age_grace = absl::Seconds(30);
  absl::Duration keepalive_time = absl::Seconds(20);
  // More than the round trip of any network, even when packets are lost and sent again.
  absl::Duration keepalive_timeout = absl::Seconds(10);
  // Clients of grpc-go never ping more often.
  absl::Duration min_ping_interval = absl::Seconds(10);
};

// Errors: InvalidArgument for a value that gRPC cannot take; the message names the option.
// The quota stands for `memory_quota_bytes`.
absl::Status ConfigureTransport(const TransportOptions& options, const ReceiveQuota& quota,
                                grpc::ServerBuilder& builder);

// Whether the files of certificates are those that the addresses ask for, that of the metrics
// (empty for none) included, and make sense. Errors: InvalidArgument, naming the option that is
// missing or has no use, or what its file lacks.
absl::Status CheckTls(const TransportOptions& options, const std::string& metrics_listen);

// Refuses the path of a unix socket on which another process listens: gRPC would silently take it
// from that process. Errors: InvalidArgument for an empty path, Unavailable where it is in use.
absl::Status CheckAddress(const std::string& address);

// The address with the port that was bound ("127.0.0.1:0" and 4711 give "127.0.0.1:4711").
std::string WithPort(const std::string& address, int port);

// Lets open calls go on for so long, cuts those that are left, and waits until all have ended.
void EndCalls(grpc::Server& server, absl::Duration farewell);

// The memory that this process may use: the limit of its control groups, or the machine's memory.
int64_t MemoryLimitBytes();

// What the daemon keeps at most of a call whose peer says nothing: gRPC's part and our own. Before
// its message has arrived gRPC tells nobody of a call, so there is no other bound on how many there
// are than that on connections.
inline constexpr int64_t kIdleCallBytes = int64_t{24} << 10;

// The limits of connections. Without a number of their own there may be half as many as files may
// be open, at most 32768, and no more than whose idle calls take an eighth of the memory limit; and
// of one peer half as many as of all.
// Errors: InvalidArgument where the daemon would have too few files left for itself.
absl::StatusOr<ConnectionLimits> ConnectionLimitsOf(const TransportOptions& options,
                                                    int64_t open_files, int64_t memory_limit_bytes);

// How many files this process may have open.
absl::StatusOr<int64_t> OpenFileLimit();

// Raises the soft limit of open files to the hard limit; returns the new one.
absl::StatusOr<int64_t> RaiseOpenFileLimit();

// From now on what gRPC logs goes to the default logger as `event=grpc`, because it holds text that
// peers sent. Its errors become
// warnings, because a peer can cause most of them. gRPC's environment variable GRPC_VERBOSITY still
// says how much gRPC logs; by default only errors.
//
// Does nothing with gRPC 1.65 or newer, which logs through Abseil.
void RouteGrpcLog();

// The same for protobuf, as `event=protobuf`: a peer can cause its errors by a string that is no
// UTF-8, say.
//
// Does nothing with protobuf 22 or newer, which logs through Abseil.
void RouteProtobufLog();

}  // namespace gemmd
