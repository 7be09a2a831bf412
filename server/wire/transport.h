// SPDX-License-Identifier: Apache-2.0
//
// gRPC's server: limits, timeouts and addresses; how it receives connections that were accepted
// outside it; and the credentials that make each call pass the gate.
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

// The user at the other end of connections. Set before the first connection and constant after it.
struct ConnectionUser {
  std::string name;  // Empty if the user is not distinguished from others.
  bool is_operator = false;
};

// Credentials for unencrypted connections, of one user if `user` is not null. Borrows both, which
// must outlive gRPC's server. gRPC's own insecure credentials support neither a gate nor a user.
std::shared_ptr<grpc::ServerCredentials> GuardedPlainCredentials(const Gate& gate,
                                                                 const ConnectionUser* user);

// Adds the gate to credentials for encrypted connections. Borrows the gate.
std::shared_ptr<grpc::ServerCredentials> Guarded(
    std::shared_ptr<grpc::ServerCredentials> credentials, const Gate& gate);

// Where gRPC takes connections that were accepted outside it, all with the same credentials.
// Releases since 1.66 have a listener for that; their acceptor of earlier releases aborts the
// process if a peer resets its connection before gRPC has it.
class GrpcListener {
 public:
  // Before the server is built.
  GrpcListener(std::shared_ptr<grpc::ServerCredentials> credentials, grpc::ServerBuilder& builder);

  // Gives gRPC a connection, which owns the descriptor from then on. Threads: any, from the
  // server's start to its end.
  void Give(int descriptor) const;

 private:
#if __has_include(<grpcpp/passive_listener.h>)
  std::unique_ptr<grpc::experimental::PassiveListener> listener_;
#else
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> listener_;
#endif
};

// Hands connections that were accepted outside gRPC to it. What a peer must show is a property of
// gRPC's listener, so there is one per kind of connection.
class GrpcAcceptors {
 public:
  // Call it once per kind, before the server is built.
  void Add(ConnectionKind kind, std::shared_ptr<grpc::ServerCredentials> credentials,
           grpc::ServerBuilder& builder);

  // Gives gRPC a connection of a kind that was added. gRPC owns the descriptor from then on.
  // Threads: any, from the server's start to its end.
  void Give(ConnectionKind kind, int descriptor) const;

 private:
  // Constant once the server has started.
  std::map<ConnectionKind, GrpcListener> all_;
};

// Hands connections of unix sockets to gRPC. gRPC does not report the user at the other end, but
// each of its listeners has its own credentials, so there is one per user. With rules, only users
// that the rules name have their own.
class UserAcceptors {
 public:
  // The maximum number of users with a listener of their own while the daemon runs. Further users
  // share one, and are treated like users that no rule names.
  static constexpr size_t kMaxUsers = 64;

  // Borrows the gate. `operators` is the group whose members may operate the daemon, beside root
  // and the daemon's own user.
  UserAcceptors(const Gate& gate, std::optional<gid_t> operators)
      : gate_(gate), operators_(operators) {}

  // Call it before the server is built.
  void AddTo(grpc::ServerBuilder& builder);

  // Gives gRPC the connection, which it owns from then on. Threads: any.
  void Give(int descriptor) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Place {
    ConnectionUser user;
    std::optional<GrpcListener> listener;
  };
  const GrpcListener& ListenerOf(const ConnectionUser& user) ABSL_LOCKS_EXCLUDED(mutex_);

  const Gate& gate_;
  const std::optional<gid_t> operators_;
  std::optional<GrpcListener> others_;
  // Operators are recognized even if other users came first and took all places.
  Place other_operators_;
  std::array<Place, kMaxUsers> places_;  // Places not in `places_of_users_` have no connections.
  Mutex mutex_;
  // By name and by whether the user is an operator: one user may be both, depending on the groups
  // of its processes.
  std::map<std::pair<std::string, bool>, size_t> places_of_users_ ABSL_GUARDED_BY(mutex_);
};

// Whether a user with these groups is an operator: root, the daemon's own user (`own`), or a member
// of the group of operators, if there is one.
bool IsOperator(uid_t user, absl::Span<const gid_t> groups, uid_t own,
                std::optional<gid_t> operators);

// Who opened the other end of a unix socket, as the kernel recorded it at that time, for example
// "uid:1000". Without a name if it cannot be found out.
ConnectionUser UserOf(int descriptor, std::optional<gid_t> operators);

// Settings of gRPC's server. The defaults are those of the command line.
struct TransportOptions {
  // host:port, unix:/path, tls:host:port, mtls:host:port.
  std::vector<std::string> listen = {"127.0.0.1:8470"};
  bool insecure_allow_remote = false;  // Whether a plain host:port may be other than loopback.
  CertificateFiles certificates;       // Required for tls: and mtls:.
  SocketAccess unix_sockets;           // The group is also that of the operators.
  int64_t max_message_bytes = int64_t{512} << 20;
  int64_t memory_quota_bytes = 0;  // For gRPC's buffers; 0: a quarter of the memory limit.
  int max_concurrent_streams = 100;
  // The maximum number of open connections; 0: see ConnectionLimitsOf.
  int64_t max_connections = 0;
  absl::Duration handshake_timeout = absl::Seconds(5);
  // Longer than the pauses of most clients, so that few have to reconnect.
  absl::Duration max_connection_idle = absl::Minutes(10);
  absl::Duration max_connection_age = absl::Minutes(30);
  // Longer than nearly all products take; clients retry calls that are cut off.
  absl::Duration max_connection_age_grace = absl::Seconds(30);
  absl::Duration keepalive_time = absl::Seconds(20);
  // Longer than the round trip of any network, even when packets are lost and sent again.
  absl::Duration keepalive_timeout = absl::Seconds(10);
  // Clients of grpc-go never ping more often.
  absl::Duration min_ping_interval = absl::Seconds(10);
};

// Errors: InvalidArgument for a value that gRPC cannot take; the message names the option. `quota`
// replaces `memory_quota_bytes`.
absl::Status ConfigureTransport(const TransportOptions& options, const ReceiveQuota& quota,
                                grpc::ServerBuilder& builder);

// Checks that there are certificate files exactly if an address, that of the metrics included,
// needs them, and that the files are valid. An empty `metrics_listen` means none. Errors:
// InvalidArgument, naming the option that is missing or unused, or what its file lacks.
absl::Status CheckTls(const TransportOptions& options, const std::string& metrics_listen);

// Refuses the path of a unix socket on which another process listens: gRPC would silently take the
// path from that process. Errors: InvalidArgument for an empty path; Unavailable if the path is in
// use.
absl::Status CheckAddress(const std::string& address);

// The address with the port that was bound ("127.0.0.1:0" and 4711 give "127.0.0.1:4711").
std::string WithPort(const std::string& address, int port);

// Lets open calls run for up to `farewell`, cancels those that are left, and waits until all have
// ended.
void EndCalls(grpc::Server& server, absl::Duration farewell);

// The memory that this process may use: the limit of its control groups, or the machine's memory.
int64_t MemoryLimitBytes();

// The maximum memory, gRPC's and our own, for a call whose peer sends nothing. gRPC does not report
// a call before its message has arrived, so only the number of connections limits how many such
// calls there are.
inline constexpr int64_t kIdleCallBytes = int64_t{24} << 10;

// The limits on connections. The default is half the limit of open files, at most 32768, and at
// most so many that their idle calls take an eighth of the memory limit. One peer may have half of
// all. Errors: InvalidArgument if too few files would be left for the daemon itself.
absl::StatusOr<ConnectionLimits> ConnectionLimitsOf(const TransportOptions& options,
                                                    int64_t open_files, int64_t memory_limit_bytes);

// The maximum number of open files of this process.
absl::StatusOr<int64_t> OpenFileLimit();

// Raises the soft limit on open files to the hard limit and returns it.
absl::StatusOr<int64_t> RaiseOpenFileLimit();

// Sends gRPC's log to the default logger as `event=grpc`, because it contains text that peers sent.
// Its errors become warnings, because a peer can cause most of them. gRPC's environment variable
// GRPC_VERBOSITY still sets how much gRPC logs; by default only errors.
//
// Does nothing with gRPC 1.65 or newer, which logs through Abseil.
void RouteGrpcLog();

// The same for protobuf, as `event=protobuf`: a peer can cause its errors, for example by a string
// that is not UTF-8.
//
// Does nothing with protobuf 22 or newer, which logs through Abseil.
void RouteProtobufLog();

}  // namespace gemmd
